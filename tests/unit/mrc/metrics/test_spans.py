"""Positions of answers: the metrics of TyDi QA and Natural Questions, by hand and against the official rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portico.errors import InputError
from portico.mrc import NqF1, TydiF1

# ---- The official rules, written slowly and plainly ----


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


def nq_positions(record):
    return tuple(record[key] for key in ("start_byte", "end_byte", "start_token", "end_token"))


def nq_outcomes(prediction, annotations):
    longs = [nq_positions(one["long_answer"]) for one in annotations]
    shorts = [[span for span in map(nq_positions, one["short_answers"]) if max(span) >= 0] for one in annotations]
    yes_no = [one["yes_no_answer"].lower() for one in annotations]
    has_long = sum(max(span) >= 0 for span in longs) >= 2
    has_short = sum(bool(spans) or said != "none" for spans, said in zip(shorts, yes_no, strict=True)) >= 2

    long = nq_positions(prediction["long_answer"])
    short = [span for span in map(nq_positions, prediction["short_answers"]) if max(span) >= 0]
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


# ---- Tests ----


def scores_of(metric, predictions, references):
    metric.update(predictions, references)
    return metric.compute()


def prediction(key, start=-1, end=-1, *, passage=-1, yes_no=0, score=1.0):
    record = {"example_id": key, "start_position": start, "end_position": end, "passage_index": passage}
    return {**record, "yes_no_answer": yes_no, "confidence_score": score}


def reference(key, spans, *, passages=None, yes_no=None, language="finnish"):
    """Of each annotator a span; as the lists of PrimeQA."""
    return {
        "example_id": [key] * len(spans),
        "language": [language] * len(spans),
        "start_position": [start for start, _ in spans],
        "end_position": [end for _, end in spans],
        "passage_index": passages or [-1] * len(spans),
        "yes_no_answer": yes_no or [0] * len(spans),
    }


@pytest.mark.parametrize(("languages", "expected"), [(["english"], 1.0), (["en"], 1.0), (["english", "thai"], 0.0)])
def test_english_counts_by_default_if_there_is_nothing_else(languages, expected):
    references = [reference(language, [(0, 5), (0, 5)], language=language) for language in languages]
    predictions = [prediction("english", 0, 5), prediction("en", 0, 5), prediction("thai", 7, 9)]
    predictions = [one for one in predictions if one["example_id"] in languages]
    assert scores_of(TydiF1(), predictions, references)["avg_minimal_f1"] == expected


@pytest.mark.parametrize("metric", [TydiF1, NqF1])
def test_all_forms_of_a_reference_give_the_same_scores(metric):
    lists = reference("a", [(0, 5), (2, 5), (-1, -1)], passages=[1, -1, 1], yes_no=["NONE", "NONE", "YES"])
    rows = [{name: values[i] for name, values in lists.items()} for i in range(3)]
    arrays = {name: np.array(values) for name, values in lists.items()}
    single = {**lists, "example_id": "a", "language": "finnish"}
    predictions = [prediction("a", 0, 5, passage=1)]
    scores = [scores_of(metric(), predictions, [form]) for form in (lists, rows, arrays, single)]
    assert scores[0] == scores[1] == scores[2] == scores[3]
    assert max(scores[0].values()) > 0
    one = scores_of(metric(), predictions, [[rows[0], rows[0]]])
    assert one == scores_of(metric(), predictions, [reference("a", [(0, 5)] * 2, passages=[1, 1])])


def test_a_single_annotator_may_come_without_lists():
    alone = {name: values[0] for name, values in reference("a", [(0, 5)]).items()}
    assert scores_of(TydiF1(minimal_non_null_threshold=1), [prediction("a", 0, 5)], [alone])["avg_minimal_f1"] == 1.0


def test_a_passage_may_have_a_separate_score():
    gold = reference("a", [(0, 5)] * 2, passages=[1, 1])
    predicted = {**prediction("a", 0, 5, passage=1, score=2.0), "passage_score": 7.0}
    scores = scores_of(TydiF1(), [predicted], [gold])
    assert (scores["finnish_passage_threshold"], scores["finnish_minimal_threshold"]) == (7.0, 2.0)
    assert scores_of(NqF1(), [predicted], [gold])["long_answer_best_threshold"] == 7.0


def test_of_two_records_with_one_id_the_last_counts():
    references = [reference("a", [(0, 9)] * 2), reference("a", [(0, 5)] * 2)]
    predictions = [prediction("a", 3, 4), prediction("a", 0, 5)]
    assert scores_of(TydiF1(), predictions, references)["avg_minimal_f1"] == 1.0
    assert scores_of(NqF1(), predictions, references)["short_answer_n"] == 1


@pytest.mark.parametrize("metric", [TydiF1, NqF1])
@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [reference("a", [(0, 5)])], r"1 questions have only .* 'a' has a reference and no prediction"),
        ([prediction("b")], [], r"'b' has a prediction and no reference"),
        ([prediction("a", 5, -1)], [reference("a", [(0, 5)])], r"'a' has an answer from 5 to -1; give a start and an"),
        ([prediction("a", 5, 3)], [reference("a", [(0, 5)])], r"'a' has an answer from 5 to 3; give a start and an"),
        ([prediction("a")], [reference("a", [(-1, 3)])], r"'a' has an answer from -1 to 3; give a start and an"),
        (
            [prediction("a", 0, 5, yes_no=3)],
            [reference("a", [(0, 5)])],
            r"'a' was answered with 'yes' and with a span",
        ),
        (
            [prediction("a", yes_no="maybe")],
            [reference("a", [(0, 5)])],
            r"answer 'maybe'; expected one of yes, no, none",
        ),
        ([prediction("a", score=float("nan"))], [reference("a", [(0, 5)])], r"'a' has a score that is not a number"),
        ([prediction("a")], [reference("a", [])], r"without annotators has no `example_id`; .* give .*'annotations'"),
    ],
)
def test_records_that_cannot_be_scored_are_rejected(metric, predictions, references, message):
    with pytest.raises(InputError, match=message):
        metric().update(predictions, references)


SCORES = st.sampled_from([-3.0, 0.0, 0.0, 1.5, 1e300, float("inf"), float("-inf")])
YES_NO = st.sampled_from(["NONE", "none", "YES", "no"])
ANY_LANGUAGE = ("arabic", "english", "thai", "klingon", "中文", "")


def span(draw, least=0):
    """A span of at least so many bytes, often the null span; all are near each other, so that they overlap."""
    if draw(st.booleans()):
        return (-1, -1)
    start = draw(st.integers(0, 6))
    return (start, start + draw(st.integers(least, 5)))


@st.composite
def tydi_records(draw, languages=ANY_LANGUAGE):
    predictions, references = [], []
    for key in draw(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True)):
        annotations = []
        for _ in range(draw(st.integers(0, 4))):
            start, end = span(draw, least=1)
            annotations.append(
                {
                    "passage_answer": {"candidate_index": draw(st.integers(-1, 1))},
                    "minimal_answer": {"plaintext_start_byte": start, "plaintext_end_byte": end},
                    "yes_no_answer": draw(YES_NO),
                }
            )
        references.append(
            {"example_id": key, "language": draw(st.sampled_from(languages)), "annotations": annotations}
        )
        said = draw(YES_NO)
        start, end = span(draw) if said.lower() == "none" else (-1, -1)
        predictions.append(
            {
                "example_id": key,
                "passage_answer_index": draw(st.integers(-1, 1)),
                "passage_answer_score": draw(SCORES),
                "minimal_answer": {"start_byte_offset": start, "end_byte_offset": end},
                "minimal_answer_score": draw(SCORES),
                "yes_no_answer": said,
            }
        )
    return draw(st.permutations(predictions)), references


def nq_span(draw):
    bytes_, tokens = span(draw, least=1), span(draw, least=1)
    names = ("start_byte", "end_byte", "start_token", "end_token")
    return dict(zip(names, (*bytes_, *tokens), strict=True))


@st.composite
def nq_records(draw):
    predictions, references = [], []
    for key in draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True)):

        def answer(shorts, said):
            return {
                "long_answer": nq_span(draw),
                "short_answers": [nq_span(draw) for _ in range(shorts)],
                "yes_no_answer": said,
            }

        annotations = [answer(draw(st.integers(0, 2)), draw(YES_NO)) for _ in range(draw(st.integers(0, 4)))]
        references.append({"example_id": key, "annotations": annotations})
        said = draw(YES_NO)
        prediction = answer(draw(st.integers(0, 2)) if said.lower() == "none" else 0, said)
        if annotations and said.lower() == "none" and draw(st.booleans()):
            # Else hardly any set of spans would be right.
            prediction = {**draw(st.sampled_from(annotations)), "yes_no_answer": "NONE"}
        scores = {"long_answer_score": draw(SCORES), "short_answers_score": draw(SCORES)}
        predictions.append({**prediction, "example_id": key, **scores})
    return draw(st.permutations(predictions)), references


@given(tydi_records(), st.booleans())
@settings(max_examples=350, deadline=None)
def test_tydi_is_the_official_script_where_english_counts_or_not(data, english):
    assert scores_of(TydiF1(include_english=english), *data) == pytest.approx(tydi(*data, english), abs=1e-12)


@given(nq_records())
@settings(max_examples=300, deadline=None)
def test_nq_is_the_official_script(data):
    assert scores_of(NqF1(), *data) == pytest.approx(nq(*data), abs=1e-12)
