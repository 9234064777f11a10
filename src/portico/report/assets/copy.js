// "Copy as CSV": on every table, and on the questions of the explorer. "Copy": on commands.
// A spreadsheet would run a text that begins like a formula, and the texts come from anywhere.
const csvField = (value) => {
  const text = String(value ?? "");
  const isFormula = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text));
  const harmless = isFormula ? `'${text}` : text;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
};

const toCsv = (rows) => rows.map((row) => `${row.map(csvField).join(",")}\r\n`).join("");

const isWithin = (cell) => cell.querySelector(".interval") !== null;

// A cell's text without what stands below it, then the ends of its interval if its column has any.
const cellValues = (cell, hasInterval) => {
  const copy = cell.cloneNode(true);
  for (const part of copy.querySelectorAll(".interval, .baseline, .p, .bar, small")) part.remove();
  const text = copy.textContent.trim();
  const value = cell.classList.contains("number") || hasInterval ? text.replaceAll(",", "") : text;
  const interval = cell.querySelector(".interval");
  return hasInterval ? [value, interval?.dataset.low, interval?.dataset.high] : [value];
};

const tableToCsv = (table) => {
  const [head, body] = [table.tHead ? [...table.tHead.rows] : [], [...table.tBodies].flatMap((part) => [...part.rows])];
  const hasInterval = (column) => body.some((row) => row.cells[column] && isWithin(row.cells[column]));
  const names = head.map((row) => [...row.cells].flatMap((cell, column) => {
    const name = cell.textContent.trim();
    return hasInterval(column) ? [name, `${name} low`, `${name} high`] : [name];
  }));
  return toCsv([...names, ...body.map((row) => [...row.cells].flatMap((cell, column) => cellValues(cell, hasInterval(column))))]);
};

// Browsers offer no clipboard to some pages; selected text can be copied everywhere.
const copyText = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
};

const makeCopyButton = (text, label) => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = label;
  button.addEventListener("click", async () => {
    await copyText(text());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 2000);
  });
  return button;
};

for (const table of document.querySelectorAll("table")) {
  const heading = table.closest(".panel")?.querySelector("h3");
  const button = makeCopyButton(() => tableToCsv(table), "Copy as CSV");
  if (heading) heading.after(button);
  else (table.closest(".wide") ?? table).after(button);
}
for (const command of document.querySelectorAll(".command pre")) {
  command.after(makeCopyButton(() => command.textContent, "Copy"));
}
