// A list of any length: only the visible rows are in the document. All rows have the same height.
const makeElement = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

const NO_ANSWER = "no answer";

const answerText = (text, className) => {
  if (!text) return makeElement("em", "none", NO_ANSWER);
  return makeElement("bdi", className, text);
};

const makeRow = (data, question) => {
  const kind = data.kinds[question.kind];
  const last = question.answers[question.answers.length - 1];
  const row = makeElement("div", `row ${kind.name}`);
  const asked = makeElement("span", "asked", question.asked);
  asked.dir = "auto";
  const below = makeElement("span", "below");
  below.append(makeElement("span", "badge", kind.label), answerText(last.text));
  row.append(asked, below);
  return row;
};

// `onChoose` gets the index of the selected question, and whether the reader selected it.
const makeList = (data, box, onChoose) => {
  const rows = box.querySelector(".rows");
  const rowHeight = 64;
  const spare = 8;
  let shown = [];
  let chosen = -1;

  const draw = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - spare);
    const end = Math.min(shown.length, first + Math.ceil(box.clientHeight / rowHeight) + 2 * spare);
    rows.style.height = `${shown.length * rowHeight}px`;
    rows.replaceChildren(...shown.slice(first, end).map((index, offset) => {
      const place = first + offset;
      const row = makeRow(data, data.questions[index]);
      row.id = `row-${index}`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(place === chosen));
      row.setAttribute("aria-posinset", place + 1);
      row.setAttribute("aria-setsize", shown.length);
      row.style.top = `${place * rowHeight}px`;
      row.addEventListener("click", () => choose(place, true));
      return row;
    }));
    if (chosen >= first && chosen < end) box.setAttribute("aria-activedescendant", `row-${shown[chosen]}`);
    else box.removeAttribute("aria-activedescendant");
  };

  const scrollToChosen = () => {
    const top = chosen * rowHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + rowHeight - box.clientHeight;
  };

  const choose = (place, byReader) => {
    chosen = Math.max(-1, Math.min(shown.length - 1, place));
    if (chosen >= 0) scrollToChosen();
    draw();
    onChoose(chosen >= 0 ? shown[chosen] : null, byReader);
  };

  box.addEventListener("scroll", draw, { passive: true });
  window.addEventListener("resize", draw);
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(box.clientHeight / rowHeight) - 1);
    const moves = {
      ArrowDown: chosen + 1, ArrowUp: Math.max(0, chosen - 1), Home: 0, End: shown.length - 1,
      PageDown: chosen + page, PageUp: Math.max(0, chosen - page),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(moves[event.key], true);
  });

  return {
    move: (by) => choose(Math.max(0, chosen + by), true),
    // Shows other questions; keeps the selected one if it is among them, else selects the first.
    fill(indices, wanted) {
      shown = indices;
      const place = shown.indexOf(wanted);
      if (place < 0) box.scrollTop = 0;
      choose(place < 0 ? 0 : place, false);
    },
  };
};
