// A passage with its marked parts; text far from every mark is folded.
const KEPT_AROUND = 400;
const LAYERS = ["gold", "predicted", "second"];
const MEANINGS = ["expected", "answered", "answered by the second run"];

const foldedText = (text, isFirst, isLast) => {
  const head = isFirst && !isLast ? "" : text.slice(0, KEPT_AROUND);
  const tail = isLast ? "" : text.slice(-KEPT_AROUND);
  const hidden = text.length - head.length - tail.length;
  if (hidden <= KEPT_AROUND) return [text];
  const button = makeElement("button", "fold", `show ${hidden.toLocaleString("en")} characters`);
  button.type = "button";
  button.addEventListener("click", () => button.replaceWith(text.slice(head.length, text.length - tail.length)));
  return [head, button, tail];
};

const markedText = (text, kinds) => {
  const isMarked = (_, layer) => kinds & (1 << layer);
  const mark = makeElement("mark", LAYERS.filter(isMarked).join(" "), text);
  mark.title = MEANINGS.filter(isMarked).join(", ");
  return mark;
};

const makePassage = (context, marks) => {
  const passage = makeElement("p", "passage");
  passage.dir = "auto";
  let place = 0;
  for (const [start, end, kinds] of marks) {
    if (start > place) passage.append(...foldedText(context.slice(place, start), place === 0, false));
    passage.append(markedText(context.slice(start, end), kinds));
    place = end;
  }
  if (place < context.length) passage.append(...foldedText(context.slice(place), place === 0, true));
  return passage;
};
