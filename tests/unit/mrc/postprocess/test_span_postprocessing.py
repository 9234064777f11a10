import json
import logging
from dataclasses import replace

import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc import (
    AnswerCalibration,
    SpanPostProcessing,
    SquadMetrics,
    postprocess_qa_predictions,
    squad_metrics,
)
from portico.mrc.postprocess import span_postprocessing
from portico.mrc.postprocess.ranking import span_probabilities

WORDS = [(3 * w, 3 * w + 2) for w in range(8)]
EXAMPLES = [
    {
        "id": f"{e}",
        "context": "aa bb cc dd ee ff gg hh",
        "answers": {"text": ["bb cc"], "answer_start": [3]} if e % 3 else {"text": [], "answer_start": []},
    }
    for e in range(60)
]
ROWS = [{"example_id": f"{e}", "offset_mapping": [None, *WORDS]} for e in range(60)]


def outputs(seed=0):
    """Return logits that speak for the gold answers, but for no answer a little too often."""
    rng = np.random.default_rng(seed)
    starts, ends = rng.normal(size=(2, 60, 9)).astype(np.float32)
    has_answer = np.arange(60) % 3 > 0
    starts[has_answer, 2] += 3
    ends[has_answer, 3] += 3
    starts[~has_answer, 0] += 3
    starts[:, 0] += 6
    return starts, ends


def f1_of(answered):
    return squad_metrics(answered.predictions, answered.label_ids, True)["f1"]


def test_scores_come_from_records_that_are_made_some_at_a_time(monkeypatch):
    monkeypatch.setattr(span_postprocessing, "_RECORDS_AT_ONCE", 7)
    answered = SpanPostProcessing(True)(EXAMPLES, ROWS, outputs())
    scores = SquadMetrics(True)(answered)
    # Nobody has asked for all of them, which would take more memory than what they are made from.
    assert not {"predictions", "label_ids"} & vars(answered).keys()
    assert [len(batch.predictions) for batch in answered.batches()] == 8 * [7] + [4]
    predictions, references = answered
    for records in (predictions, references):
        assert [record["id"] for record in records] == [example["id"] for example in EXAMPLES]
    assert scores == squad_metrics(predictions, references, True)
    assert 0 < scores["exact"] < 100


def test_best_null_threshold():
    usual = SpanPostProcessing(True)(EXAMPLES, ROWS, outputs())
    tuned = SpanPostProcessing(True, null_score_diff_threshold="best")(EXAMPLES, ROWS, outputs())
    assert f1_of(tuned) > f1_of(usual) + 3
    assert tuned.answers.null_threshold > 0
    again = SpanPostProcessing(True, null_score_diff_threshold=tuned.answers.null_threshold)
    assert again(EXAMPLES, ROWS, outputs()).predictions == tuned.predictions


def test_calibration_is_written_next_to_the_answers(tmp_path, caplog):
    SpanPostProcessing(True, calibrate=True)(EXAMPLES, ROWS, outputs()).write(tmp_path, "eval")
    calibration = json.loads((tmp_path / "answer_calibration.json").read_text())
    assert calibration["null_score_diff_threshold"] == 0.0
    SpanPostProcessing(False, calibrate=True)(EXAMPLES, ROWS, outputs()).write(tmp_path, "eval")
    assert json.loads((tmp_path / "answer_calibration.json").read_text())["null_score_diff_threshold"] is None
    wrong = [{**example, "answers": {"text": ["zz"], "answer_start": [0]}} for example in EXAMPLES]
    with caplog.at_level(logging.WARNING):
        SpanPostProcessing(False, calibrate=True)(wrong, ROWS, outputs()).write(tmp_path / "new", "eval")
    assert "The answers are not calibrated. None of the candidates of any question is right" in caplog.text
    assert not (tmp_path / "new" / "answer_calibration.json").exists()


@pytest.mark.parametrize("threshold", [0.0, 3.0])
def test_calibrated_probabilities_of_a_question_add_up_to_at_most_1(threshold):
    rules = SpanPostProcessing(True, null_score_diff_threshold=threshold)
    calibration = AnswerCalibration(temperature=2.0, slope=0.5, intercept=0.5)
    plain = rules(EXAMPLES, ROWS, outputs()).answers
    calibrated = replace(rules, calibration=calibration)(EXAMPLES, ROWS, outputs()).answers
    alone_N = calibration.calibrated(span_probabilities(plain.shortlist.ranked, temperature=2.0))
    shared_N = calibrated.shortlist.probability_N
    sums_E, old_sums_E = (
        np.add.reduceat(each, plain.shortlist.ranked.row_starts[:-1]) for each in (shared_N, alone_N)
    )
    assert old_sums_E.max() > 1.5
    assert sums_E.max() == pytest.approx(1)
    # The answer keeps the probability that was fitted to it.
    assert shared_N[plain.rows_E].tolist() == alone_N[plain.rows_E].tolist()
    assert (shared_N <= alone_N).all()


def test_hf_mode_equals_the_hf_example():
    starts, ends = (np.round(array) for array in outputs())
    answered = SpanPostProcessing(True, mode="hf", n_best_size=4)(EXAMPLES, ROWS, (starts, ends))
    assert answered.answers.predictions == postprocess_qa_predictions(EXAMPLES, ROWS, (starts, ends), True, 4)


def test_primeqa_mode_weighs_answer_types():
    types = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    answered = SpanPostProcessing(True, mode="primeqa")(EXAMPLES, ROWS, (*outputs(), types))
    starts, ends = (array.astype(np.float64) for array in outputs())
    best = answered.answers.candidates["1"][0]
    assert best.text == "bb cc"
    difference = (starts[1, 2] + ends[1, 3]) - (starts[1, 0] + ends[1, 0])
    assert best.score == 0.5 * difference + 0.5 * float(types[1, 1])
    assert answered.answers.null_odds is None
    other = SpanPostProcessing(True, mode="primeqa", scorer_type="score_diff_based")
    assert other(EXAMPLES, ROWS, outputs()).answers.candidates["1"][0].score == difference


def test_beam_search_mode_takes_five_outputs():
    tokens = np.full((60, 2), 2)
    scores = np.zeros((60, 2), np.float32)
    beams = (scores, tokens, scores, tokens + 1, np.arange(60, dtype=np.float32))
    answered = SpanPostProcessing(True, mode="beam_search")(EXAMPLES, ROWS, beams)
    assert set(answered.answers.predictions.values()) == {"bb cc"}
    assert answered.answers.null_odds["7"] == 7.0


def test_unlabelled_questions_have_no_references():
    unlabelled = [{"id": example["id"], "context": example["context"]} for example in EXAMPLES]
    answered = SpanPostProcessing(True)(unlabelled, ROWS, outputs())
    assert answered.label_ids is None
    assert len(answered.predictions) == 60
    with pytest.raises(InputError, match=r"Example '0' has no `answers`, but scores can only be tuned on labelled"):
        SpanPostProcessing(True, null_score_diff_threshold="best")(unlabelled, ROWS, outputs())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "squad"}, r"Unknown `mode=squad`; expected one of portico, hf, primeqa, beam_search"),
        (
            {"null_score_diff_threshold": "good"},
            r"`null_score_diff_threshold=good` is invalid; set it to a number",
        ),
        ({"null_score_diff_threshold": float("nan")}, r"`null_score_diff_threshold=nan` is invalid; set it to a numb"),
        ({"search": "deep"}, r"Unknown `search=deep`; expected one of top, exhaustive"),
        ({"mode": "hf", "search": "exhaustive"}, r"`search=exhaustive` is not available with `mode=hf`"),
        ({"scorer_type": "x"}, r"Unknown `scorer_type=x`; expected one of score_diff_based"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(InputError, match=message):
        SpanPostProcessing(True, **options)


def test_best_null_threshold_needs_version_2():
    with pytest.raises(
        InputError, match=r"`null_score_diff_threshold=best` needs scores .* `version_2_with_negative` to true"
    ):
        SpanPostProcessing(False, null_score_diff_threshold="best")(EXAMPLES, ROWS, outputs())
