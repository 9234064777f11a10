// A passage with its marked parts; text far from every mark is folded.
const KEPT_AROUND = 400;
// What the first bits of a mark mean; all later ones are answers of further runs.
const LAYERS = ["gold", "predicted", "second"];
const layerOf = (bit) => LAYERS[Math.min(bit, LAYERS.length - 1)];

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

const markedText = (text, kinds, runs) => {
  const meanings = ["expected", ...(runs.length > 1 ? runs.map((run) => `answered by ${run}`) : ["answered"])];
  const bits = meanings.map((_, bit) => bit).filter((bit) => kinds & (1 << bit));
  const mark = makeElement("mark", [...new Set(bits.map(layerOf))].join(" "), text);
  mark.title = bits.map((bit) => meanings[bit]).join(", ");
  return mark;
};

const makePassage = (context, marks, runs) => {
  const passage = makeElement("p", "passage");
  passage.dir = "auto";
  let place = 0;
  for (const [start, end, kinds] of marks) {
    if (start > place) passage.append(...foldedText(context.slice(place, start), place === 0, false));
    passage.append(markedText(context.slice(start, end), kinds, runs));
    place = end;
  }
  if (place < context.length) passage.append(...foldedText(context.slice(place), place === 0, true));
  return passage;
};
