// The explorer: the filters, the list of the questions that pass them, and the selected question.
// `#q=<id>` in the address selects a question, `#g=<grouping>.<group>` a group.
const startExplorer = (explorer) => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const query = querier(data);
  const find = (selector) => explorer.querySelector(selector);
  const filters = [...explorer.querySelectorAll("[data-kind]")];
  const search = find("input");
  const group = find(".group");
  const order = find(".order");
  const detail = find(".detail");
  const indexOfId = new Map(data.questions.map((question, index) => [question.id, index]));
  let current = null;

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
    const found = query(criteria);
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
    const [, name, value] = /^#([qg])=(.*)$/.exec(location.hash) ?? [];
    if (!name) return;
    clear();
    if (name === "g") group.value = decodeURIComponent(value);
    else current = indexOfId.get(decodeURIComponent(value)) ?? current;
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

  explorer.hidden = false;
  refresh();
  followAddress("instant");
};

for (const explorer of document.querySelectorAll(".explorer")) startExplorer(explorer);
