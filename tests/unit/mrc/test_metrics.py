import pickle

import pytest
from torchmetrics.text import SQuAD

from portico.errors import InputError
from portico.mrc.metrics import SquadV2, exact_match, normalize_answer, squad_metrics, token_f1


def prediction(example_id, text, probability=None):
    record = {"id": example_id, "prediction_text": text}
    return record if probability is None else {**record, "no_answer_probability": probability}


def reference(example_id, *texts):
    return {"id": example_id, "answers": {"text": list(texts), "answer_start": [0] * len(texts)}}


PREDICTIONS = [
    prediction("a", "The Mill!"),
    prediction("b", "old stone mill"),
    prediction("c", ""),
    prediction("d", "x"),
]
REFERENCES = [reference("a", "mill"), reference("b", "the mill", "river"), reference("c"), reference("d")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Old   Mill. ", "old mill"),
        ("A.B.C.", "abc"),
        ("another an", "another"),
        ("Łódź's", "łódźs"),
        ("a", ""),
    ],
)
def test_normalisation(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "golds", "exact", "f1"),
    [
        ("the Mill", ["mill"], 1, 1),
        ("old stone mill", ["river", "the mill"], 0, 0.5),
        ("mill mill", ["mill"], 0, 2 / 3),
        ("river", ["mill"], 0, 0),
        ("", [], 1, 1),
        ("mill", [], 0, 0),
        ("", ["mill"], 0, 0),
        ("the", [], 1, 1),  # nothing is left of it
        ("mill", ["the", "mill"], 1, 1),
        ("", ["the", "mill"], 0, 0),  # a gold answer of which nothing is left does not count
    ],
)
def test_scores_of_one_answer(text, golds, exact, f1):
    assert exact_match(text, golds) == exact
    assert token_f1(text, golds) == pytest.approx(f1, abs=1e-15)


def test_squad_2_metrics_by_hand():
    assert squad_metrics(PREDICTIONS, REFERENCES, True) == {
        "exact": 50.0,
        "f1": 62.5,
        "total": 4,
        "HasAns_exact": 50.0,
        "HasAns_f1": 75.0,
        "HasAns_total": 2,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }


def test_a_kind_of_question_that_does_not_occur_is_left_out():
    scores = squad_metrics(PREDICTIONS[2:], REFERENCES[2:], True)
    assert {name.split("_")[0] for name in scores} == {"exact", "f1", "total", "NoAns"}


def test_batches_and_processes_add_up():
    whole, parts = SquadV2(), [SquadV2(), SquadV2()]
    predictions = [{**record, "no_answer_probability": i / 4} for i, record in enumerate(PREDICTIONS)]
    whole.update(predictions, REFERENCES)
    for p, part in enumerate(parts):
        for i in (2 * p, 2 * p + 1):
            part.update(predictions, REFERENCES[i : i + 1])
    together = pickle.loads(pickle.dumps(parts[0]))
    together.merge_state(parts[1])
    assert together.compute() == whole.compute()


def test_the_best_threshold_is_found():
    predictions = [
        prediction("a", "mill", 0.1),  # right
        prediction("b", "old mill", 0.2),  # F1 2/3
        prediction("c", "x", 0.3),  # wrong: there is no answer
        prediction("d", "", 0.9),
    ]
    scores = squad_metrics(predictions, REFERENCES, True)
    assert (scores["exact"], scores["best_exact"], scores["best_exact_thresh"]) == (50.0, 75.0, 0.1)
    assert scores["best_f1"] == pytest.approx(100 * (2 + 1 + 2 / 3) / 4)
    assert scores["best_f1_thresh"] == 0.2


def test_answering_nothing_can_be_best():
    scores = squad_metrics([prediction("c", "x", 0.5)], [reference("c")], True)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (100.0, 0.0)


def test_squad_1_metrics_are_those_of_torchmetrics():
    metric = SQuAD()
    metric.update(PREDICTIONS[:2], REFERENCES[:2])
    scores = squad_metrics(PREDICTIONS[:2], REFERENCES[:2], False)
    assert scores == {"exact_match": 50.0, "f1": 75.0}
    assert scores == {name: float(score) for name, score in metric.compute().items()}


@pytest.mark.parametrize("version_2_with_negative", [False, True])
def test_a_question_without_prediction_is_refused(version_2_with_negative):
    with pytest.raises(InputError, match=r"1 of 2 references have no prediction, for example 'b'"):
        squad_metrics(PREDICTIONS[:1], REFERENCES[:2], version_2_with_negative)
