// The explorer: the filters, the list of the questions that pass them, and the selected question.
// `#q=<id>` in the address selects a question; `#g=<grouping>.<group>`, `#k=<kinds>` and `#s=<words>`, joined by "&", the
// questions to list.
const startExplorer = (explorer) => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const query = querier(data);
  const find = (selector) => explorer.querySelector(selector);
  const filters = [...explorer.querySelectorAll("[data-kind]")];
  const search = find("input");
  const group = find(".group");
  const order = find(".order");
  const detail = find(".detail");
  const link = find(".slice");
  const indexOfId = new Map(data.questions.map((question, index) => [question.id, index]));
  let current = null;
  let found = [];

  const isPressed = (button) => button.getAttribute("aria-pressed") === "true";

  const list = makeList(data, find(".list"), (index, byReader) => {
    current = index;
    detail.replaceChildren(...(index === null ? [] : makeDetail(data, data.questions[index])));
    if (byReader && index !== null) {
      history.replaceState(null, "", `#q=${encodeURIComponent(data.questions[index].id)}`);
    }
  });

  const refresh = () => {
    const criteria = {
      kinds: filters.filter(isPressed).map((button) => Number(button.dataset.kind)),
      search: search.value, group: group.value, order: order.value,
    };
    found = query(criteria);
    const address = { g: criteria.group, k: criteria.kinds.join(), s: criteria.search.trim() };
    const parts = Object.entries(address).filter(([, value]) => value);
    link.hidden = parts.length === 0;
    link.href = `#${parts.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`;
    const total = data.questions.length;
    const count = (number) => number.toLocaleString("en");
    find(".matches").textContent = found.length === total
      ? `${count(total)} question${total === 1 ? "" : "s"}` : `${count(found.length)} of ${count(total)} questions`;
    explorer.classList.toggle("empty", found.length === 0);
    list.fill(found, current);
  };

  const clear = () => {
    for (const button of filters) button.setAttribute("aria-pressed", "false");
    search.value = "";
    group.value = "";
  };

  const followAddress = (behavior) => {
    if (!/^#[qgks]=/.test(location.hash)) return;
    const wanted = new URLSearchParams(location.hash.slice(1));
    clear();
    group.value = wanted.get("g") ?? "";
    search.value = wanted.get("s") ?? "";
    const kinds = (wanted.get("k") ?? "").split(",");
    for (const button of filters) button.setAttribute("aria-pressed", String(kinds.includes(button.dataset.kind)));
    current = indexOfId.get(wanted.get("q")) ?? current;
    refresh();
    explorer.closest("section").scrollIntoView({ behavior });
  };

  for (const button of filters) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(!isPressed(button)));
      refresh();
    });
  }
  search.addEventListener("input", refresh);
  group.addEventListener("change", refresh);
  order.addEventListener("change", refresh);
  window.addEventListener("hashchange", () => followAddress("auto"));
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "j") list.move(1);
    else if (event.key === "k") list.move(-1);
    else if (event.key === "/") search.focus();
    else return;
    event.preventDefault();
  });

  find(".state").append(makeCopyButton(() => toCsv(questionRows(data, found)), "Copy as CSV"));
  explorer.hidden = false;
  refresh();
  followAddress("instant");
};

for (const explorer of document.querySelectorAll(".explorer")) startExplorer(explorer);
