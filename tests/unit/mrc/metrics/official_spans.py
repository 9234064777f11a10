"""The official rules for TyDi QA and Natural Questions, written slowly and plainly, to compare the metrics with."""


def divide(x, y):
    return x / y if y else 0


def tydi_outcomes(prediction, annotations, passage_threshold=2, minimal_threshold=2):
    """`(has gold, has prediction, worth, score)` of the passage and of the minimal answer, of official records."""
    passages = [one["passage_answer"]["candidate_index"] for one in annotations]
    spans = [
        (one["minimal_answer"]["plaintext_start_byte"], one["minimal_answer"]["plaintext_end_byte"])
        for one in annotations
    ]
    yes_no = [one["yes_no_answer"].lower() for one in annotations]
    has_passage = sum(index >= 0 for index in passages) >= passage_threshold
    has_minimal = sum(s[0] >= 0 or y != "none" for s, y in zip(spans, yes_no, strict=True)) >= minimal_threshold

    index = prediction["passage_answer_index"]
    right = has_passage and index >= 0 and index in passages
    start, end = prediction["minimal_answer"]["start_byte_offset"], prediction["minimal_answer"]["end_byte_offset"]
    said = prediction["yes_no_answer"].lower()
    worth = 0.0
    if has_minimal and said != "none":
        worth = float(said in yes_no)
    elif has_minimal and start >= 0:
        worth = max([bytes_f1(set(range(*span)), set(range(start, end))) for span in spans if span[0] >= 0] or [0.0])
    return (
        (has_passage, index >= 0, right, prediction["passage_answer_score"]),
        (has_minimal, start >= 0 or said != "none", worth, prediction["minimal_answer_score"]),
    )


def bytes_f1(gold, predicted):
    shared = len(gold & predicted)
    precision, recall = divide(shared, len(predicted)), divide(shared, len(gold))
    return divide(2 * precision * recall, precision + recall)


def curve(outcomes):
    """Precision and recall by threshold, from the highest score on; equal scores count together."""
    num_gold = sum(has_gold for has_gold, *_ in outcomes)
    points, worth, predicted = {}, 0.0, 0
    for _, has_prediction, gain, score in sorted(outcomes, key=lambda outcome: outcome[-1], reverse=True):
        worth, predicted = worth + gain, predicted + has_prediction
        points[score] = (divide(worth, predicted), divide(worth, num_gold))
    return points


def best(outcomes):
    found = (0.0, 0.0, 0.0, 0.0)
    for threshold, (precision, recall) in curve(outcomes).items():
        f1 = divide(2 * precision * recall, precision + recall)
        if f1 > found[0]:
            found = (f1, precision, recall, threshold)
    return found


def recall_at(outcomes, target):
    found = (0, 0)
    for precision, recall in curve(outcomes).values():
        if precision >= target and recall > found[0]:
            found = (recall, precision)
    return found


def tydi(predictions, references, include_english=False):
    by_language = {}
    predicted = {record["example_id"]: record for record in predictions}
    for record in references:
        outcomes = tydi_outcomes(predicted[record["example_id"]], record["annotations"])
        by_language.setdefault(record["language"], []).append(outcomes)
    out = {}
    for t, task in enumerate(("passage", "minimal")):
        of_task = {language: best([row[t] for row in rows]) for language, rows in by_language.items()}
        for language, values in of_task.items():
            for name, value in zip(("f1", "precision", "recall", "threshold"), values, strict=True):
                out[f"{language}_{task}_{name}"] = value
        counted = [values for language, values in of_task.items() if include_english or language != "english"]
        for i, name in enumerate(("f1", "precision", "recall")):
            out[f"avg_{task}_{name}"] = divide(sum(values[i] for values in counted), len(counted))
    return out


def nq_equal(one, other):
    """Whether two spans (start byte, end byte, start token, end token) are the same bytes or the same tokens."""
    return (one[0] >= 0 and one[:2] == other[:2]) or (one[2] >= 0 and one[2:] == other[2:])


def nq_span(record):
    return tuple(record[key] for key in ("start_byte", "end_byte", "start_token", "end_token"))


def nq_outcomes(prediction, annotations):
    longs = [nq_span(one["long_answer"]) for one in annotations]
    shorts = [[span for span in map(nq_span, one["short_answers"]) if max(span) >= 0] for one in annotations]
    yes_no = [one["yes_no_answer"].lower() for one in annotations]
    has_long = sum(max(span) >= 0 for span in longs) >= 2
    has_short = sum(bool(spans) or said != "none" for spans, said in zip(shorts, yes_no, strict=True)) >= 2

    long = nq_span(prediction["long_answer"])
    short = [span for span in map(nq_span, prediction["short_answers"]) if max(span) >= 0]
    said = prediction["yes_no_answer"].lower()
    right_short = said in yes_no if said != "none" else bool(short) and any(nq_same(spans, short) for spans in shorts)
    return (
        (
            has_long,
            max(long) >= 0,
            has_long and any(nq_equal(gold, long) for gold in longs),
            prediction["long_answer_score"],
        ),
        (has_short, bool(short) or said != "none", has_short and right_short, prediction["short_answers_score"]),
    )


def nq_same(gold, predicted):
    return all(any(nq_equal(p, g) for g in gold) for p in predicted) and all(
        any(nq_equal(p, g) for p in predicted) for g in gold
    )


def nq(predictions, references):
    predicted = {record["example_id"]: record for record in predictions}
    rows = [nq_outcomes(predicted[record["example_id"]], record["annotations"]) for record in references]
    out = {}
    for t, task in enumerate(("long_answer", "short_answer")):
        outcomes = [row[t] for row in rows]
        worth = sum(outcome[2] for outcome in outcomes)
        precision, recall = (divide(worth, sum(outcome[i] for outcome in outcomes)) for i in (1, 0))
        out |= {f"{task}_n": len(rows), f"{task}_precision": precision, f"{task}_recall": recall}
        out[f"{task}_f1"] = divide(2 * precision * recall, precision + recall)
        for name, value in zip(("f1", "precision", "recall", "threshold"), best(outcomes), strict=True):
            out[f"{task}_best_{name}"] = value
        for target in (0.5, 0.75, 0.9):
            recall, precision = recall_at(outcomes, target)
            out |= {
                f"{task}_recall_at_precision_{target}": recall,
                f"{task}_precision_at_precision_{target}": precision,
            }
    return out
