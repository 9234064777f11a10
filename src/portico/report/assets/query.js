// Which questions to show, and in which order. Nothing here touches the page.

// Returns a function that returns whether a question contains all words, each anywhere in its texts or its passage.
const searcher = (data) => {
  const texts = data.questions.map((question) =>
    [question.id, question.title, question.asked, ...question.golds, ...question.answers.map((answer) => answer.text)]
      .join("\n").toLowerCase()
  );
  const passages = data.contexts.map((context) => context.toLowerCase());
  return (search) => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    // Many questions share a passage, so each passage is searched once.
    const isInPassage = words.map((word) => passages.map((passage) => passage.includes(word)));
    return (index) => words.every((word, which) =>
      texts[index].includes(word) || isInPassage[which][data.questions[index].context]
    );
  };
};

// Sort keys, ascending. An unknown `sure` comes last.
const orderings = (data) => {
  const last = (question) => question.answers[question.answers.length - 1];
  const sure = (question) => last(question).sure ?? 0;
  return {
    given: () => 0,
    worst: (question) => last(question).f1 - sure(question) / 1000,
    sure: (question) => -sure(question),
    unsure: (question) => last(question).sure ?? 2,
    long: (question) => -data.contexts[question.context].length,
    moved: (question) => {
      const scores = question.answers.map((answer) => answer.f1);
      return Math.min(...scores) - Math.max(...scores);
    },
  };
};

// The questions as rows of a table, the names of its columns first.
const questionRows = (data, indices) => {
  const ofRun = (name) => (data.runs.length > 1 ? data.runs.map((run) => `${name} (${run})`) : [name]);
  const head = ["id", "kind", "question", "expected", ...["answer", "F1", "probability"].flatMap(ofRun)];
  return [head, ...indices.map((index) => {
    const { id, kind, asked, golds, answers } = data.questions[index];
    const values = ["text", "f1", "sure"].flatMap((field) => answers.map((answer) => answer[field]));
    return [id, data.kinds[kind].label, asked, golds.join(" | "), ...values];
  })];
};

// Returns a function that maps the settings of the filters to the indices of the questions to show.
const querier = (data) => {
  const holds = searcher(data);
  const rankings = orderings(data);
  const isInGroup = (question, group) => {
    const dot = group.indexOf(".");
    const grouping = Number(group.slice(0, dot));
    return data.groups[grouping][question.groups[grouping]] === group.slice(dot + 1);
  };
  return ({ kinds, search, group, order }) => {
    const matches = holds(search);
    const wanted = data.questions.map((_, index) => index).filter((index) => {
      const question = data.questions[index];
      return (kinds.length === 0 || kinds.includes(question.kind))
        && (!group || isInGroup(question, group))
        && matches(index);
    });
    const rank = rankings[order];
    return wanted.sort((a, b) => rank(data.questions[a]) - rank(data.questions[b]) || a - b);
  };
};
