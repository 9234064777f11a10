"""TyDi QA and Natural Questions, mostly in PrimeQA's form."""

import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc import NqF1, TydiF1


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


def test_tydi_by_hand():
    """The overlap of (17, 42) and (24, 44) is 18 of 20 predicted and 18 of 25 gold bytes."""
    references = [reference("a", [(17, 42), (17, 42)], passages=[1, 3])]
    scores = scores_of(TydiF1(), [prediction("a", 24, 44, passage=3, score=-5.0)], references)
    assert scores["finnish_minimal_f1"] == pytest.approx(0.8)
    assert scores["avg_minimal_f1"] == scores["finnish_minimal_f1"]
    assert scores["avg_passage_f1"] == 1.0
    assert scores["finnish_passage_threshold"] == -5.0


@pytest.mark.parametrize(("include_english", "expected"), [(None, 0.0), (False, 0.0), (True, 0.5)])
def test_english_counts_where_it_is_wanted(include_english, expected):
    gold = [(0, 5), (0, 5)]
    references = [reference("a", gold, language="english"), reference("b", gold)]
    predictions = [prediction("a", 0, 5), prediction("b", 7, 9)]
    scores = scores_of(TydiF1(include_english=include_english), predictions, references)
    assert scores["avg_minimal_f1"] == expected
    assert scores["english_minimal_f1"] == 1.0


@pytest.mark.parametrize(("include_english", "expected"), [(None, 1.0), (False, 0.0)])
@pytest.mark.parametrize("language", ["english", "en"])
def test_english_alone_counts_unless_told_otherwise(include_english, expected, language):
    references = [reference("a", [(0, 5), (0, 5)], language=language)]
    scores = scores_of(TydiF1(include_english=include_english), [prediction("a", 0, 5)], references)
    assert scores["avg_minimal_f1"] == expected


def test_the_best_threshold_drops_what_is_wrong():
    gold = [(0, 5), (0, 5)]
    references = [reference("a", gold), reference("b", [(-1, -1)] * 2), reference("c", gold)]
    predictions = [
        prediction("a", 0, 5, score=3.0),
        prediction("b", 0, 5, score=1.0),
        prediction("c", 0, 5, score=2.0),
    ]
    scores = scores_of(TydiF1(), predictions, references)
    assert (scores["finnish_minimal_f1"], scores["finnish_minimal_threshold"]) == (1.0, 2.0)


@pytest.mark.parametrize("metric", [TydiF1, NqF1])
def test_forms_of_a_reference_are_equal(metric):
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


def test_an_annotator_alone_may_come_without_lists():
    alone = {name: values[0] for name, values in reference("a", [(0, 5)]).items()}
    assert scores_of(TydiF1(minimal_non_null_threshold=1), [prediction("a", 0, 5)], [alone])["avg_minimal_f1"] == 1.0


def test_a_passage_may_have_a_score_of_its_own():
    gold = reference("a", [(0, 5)] * 2, passages=[1, 1])
    predicted = {**prediction("a", 0, 5, passage=1, score=2.0), "passage_score": 7.0}
    scores = scores_of(TydiF1(), [predicted], [gold])
    assert (scores["finnish_passage_threshold"], scores["finnish_minimal_threshold"]) == (7.0, 2.0)
    assert scores_of(NqF1(), [predicted], [gold])["long_answer_best_threshold"] == 7.0


def test_of_two_with_one_id_the_last_counts():
    references = [reference("a", [(0, 9)] * 2), reference("a", [(0, 5)] * 2)]
    predictions = [prediction("a", 3, 4), prediction("a", 0, 5)]
    assert scores_of(TydiF1(), predictions, references)["avg_minimal_f1"] == 1.0
    assert scores_of(NqF1(), predictions, references)["short_answer_n"] == 1


def test_short_answers_are_right_as_a_set():
    def official(*spans):
        spans = [{"start_byte": -1, "end_byte": -1, "start_token": s, "end_token": e} for s, e in spans]
        null = {"start_byte": -1, "end_byte": -1, "start_token": -1, "end_token": -1}
        return {"long_answer": null, "short_answers": spans, "yes_no_answer": "NONE"}

    def f1(*spans):
        predicted = {**official(*spans), "example_id": 1, "long_answer_score": 0.0, "short_answers_score": 0.0}
        gold = {"example_id": 1, "annotations": [official((1, 3), (5, 6)), official((8, 9))]}
        return scores_of(NqF1(), [predicted], [gold])["short_answer_f1"]

    assert f1((5, 6), (1, 3), (-1, -1)) == 1.0
    assert f1((8, 9)) == 1.0
    assert f1((1, 3)) == f1((1, 3), (5, 6), (8, 9)) == f1() == 0.0


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
def test_what_cannot_be_scored_is_refused(metric, predictions, references, message):
    with pytest.raises(InputError, match=message):
        metric().update(predictions, references)
