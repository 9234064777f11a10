// One question with all its fields.
const percent = (share) => `${(100 * share).toFixed(share > 0.999 || share < 0.001 ? 0 : 1)}%`;

const badge = (kind) => makeElement("span", `badge ${kind.name}`, kind.label);

const expectedLine = (question) => {
  const line = makeElement("dd");
  if (question.golds.length === 0) line.append(answerText(""));
  for (const gold of question.golds) line.append(answerText(gold, "gold"), " ");
  return line;
};

const answeredLine = (data, answer, layer) => {
  const line = makeElement("dd");
  line.append(answerText(answer.text, layer), " ");
  if (data.runs.length > 1) line.append(badge(data.outcomes[answer.outcome]), " ");
  const facts = [`F1 ${(100 * answer.f1).toFixed(0)}`];
  if (answer.sure !== null) facts.push(`${percent(answer.sure)} sure`);
  if (answer.odds !== null) facts.push(`null odds ${answer.odds > 0 ? "+" : ""}${answer.odds.toFixed(2)}`);
  line.append(makeElement("span", "facts", facts.join(", ")));
  if (answer.text && !answer.placed) {
    line.append(makeElement("small", "", "This text occurs several times in the passage, or not at all, so it is not highlighted."));
  }
  return line;
};

const candidateRow = ([text, probability, score]) => {
  const row = makeElement("tr");
  const name = makeElement("td");
  name.append(answerText(text));
  const share = makeElement("td", "share-cell");
  const bar = makeElement("span", "bar");
  const filled = makeElement("i");
  filled.style.width = `${100 * probability}%`;
  bar.append(filled);
  share.append(bar);
  row.append(name, share, makeElement("td", "number", percent(probability)),
    makeElement("td", "number", score === null ? "" : score.toFixed(2)));
  return row;
};

const candidateTable = (title, candidates) => {
  const table = makeElement("table", "candidates");
  table.append(makeElement("caption", "", title));
  const head = table.createTHead().insertRow();
  for (const [name, isNumber] of [["text", false], ["", false], ["probability", true], ["score", true]]) {
    const cell = makeElement(name ? "th" : "td", isNumber ? "number" : "", name);
    if (name) cell.scope = "col";
    head.append(cell);
  }
  table.createTBody().append(...candidates.map(candidateRow));
  const box = makeElement("div", "wide");
  box.append(table);
  return box;
};

const originLine = (question) => {
  const line = makeElement("p", "origin");
  const link = makeElement("a", "", "link to this question");
  link.href = `#q=${encodeURIComponent(question.id)}`;
  const id = makeElement("span", "", "id ");
  id.append(makeElement("bdi", "", question.id));
  line.append(id);
  if (question.title) {
    const title = makeElement("span", "", "article ");
    title.append(makeElement("bdi", "", question.title));
    line.append(title);
  }
  line.append(link);
  return line;
};

const makeDetail = (data, question) => {
  const heading = makeElement("h3", "asked", question.asked);
  heading.dir = "auto";
  const lines = makeElement("dl", "answers");
  lines.append(makeElement("dt", "", "expected"), expectedLine(question));
  question.answers.forEach((answer, run) => {
    const name = data.runs.length > 1 ? makeElement("bdi", "", data.runs[run]) : "answered";
    const term = makeElement("dt");
    term.append(name);
    lines.append(term, answeredLine(data, answer, layerOf(run + 1)));
  });
  const parts = [badge(data.kinds[question.kind]), heading, lines, makePassage(data.contexts[question.context], question.marks, data.runs)];
  question.answers.forEach((answer, run) => {
    const title = data.runs.length > 1 ? `Candidates of ${data.runs[run]}` : "Candidates";
    if (answer.candidates.length) parts.push(candidateTable(title, answer.candidates));
  });
  return [...parts, originLine(question)];
};
