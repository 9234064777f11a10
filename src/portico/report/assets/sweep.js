// The report of a sweep: pointing at one run, in any chart or in the table, picks it out in all of them.
const startSweep = (figures) => {
  const follow = (number) => {
    for (const part of document.querySelectorAll("[data-run]")) {
      part.classList.toggle("chosen", part.dataset.run === number);
    }
    for (const figure of figures) {
      const part = [...figure.querySelectorAll(".run")].find((run) => run.dataset.run === number);
      const readout = figure.querySelector(".readout");
      figure.classList.toggle("following", part !== undefined);
      readout.textContent = part ? part.dataset.label : readout.dataset.empty;
    }
  };
  for (const part of document.querySelectorAll("[data-run]")) {
    part.addEventListener("pointerenter", () => follow(part.dataset.run));
    part.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") follow(null); });
    part.addEventListener("focusin", () => follow(part.dataset.run));
    part.addEventListener("focusout", () => follow(null));
  }
};
const figuresOfRuns = [...document.querySelectorAll(".runs")];
if (figuresOfRuns.length) startSweep(figuresOfRuns);

// The table of runs: a click on the head of a column sorts by it, and fields above it choose rows.
const startRuns = (table) => {
  const fields = document.querySelector("#runs .fields");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];

  const choose = () => {
    const words = fields.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = fields.querySelector("select").value;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = (state && row.dataset.state !== state) || !words.every((word) => text.includes(word));
    }
    const count = rows.filter((row) => !row.hidden).length;
    fields.querySelector(".matches").textContent = `${count} of ${rows.length} runs`;
  };

  // Numbers before texts, and empty cells last in both directions.
  const sortBy = (column, direction) => {
    const value = (row) => {
      const cell = row.cells[column];
      return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
    };
    const compare = (a, b) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
      return direction * (typeof a === "number" ? a - b : a.localeCompare(b));
    };
    body.append(...rows.sort((one, other) => compare(value(one), value(other))));
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[column].setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(column, head.getAttribute("aria-sort") === "ascending" ? -1 : 1));
    head.append(button);
  });
  fields.addEventListener("input", choose);
  fields.hidden = false;
  choose();
};
const tableOfRuns = document.querySelector("table.jobs");
if (tableOfRuns) startRuns(tableOfRuns);
