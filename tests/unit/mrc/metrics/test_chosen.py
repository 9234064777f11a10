from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from portico.cli.location import config_dir
from portico.errors import InputError
from portico.mrc import Mlqa, Mrqa, NqF1, Rouge, SquadV1, SquadV2, TydiF1
from portico.mrc.metrics.chosen import METRIC_KEYS, chosen_metric
from portico.mrc.metrics.spans import SpanScores

TWICE = {"text": ["mill"] * 2, "answer_start": [4] * 2}
ANSWERED = {"id": "a", "answers": {"text": ["mill"], "answer_start": [4]}}
UNANSWERABLE = {"id": "b", "answers": {"text": [], "answer_start": []}}
CLASSES = {"squad": SquadV1, "squad_v2": SquadV2, "mlqa": Mlqa, "mrqa": Mrqa, "rouge": Rouge}
CLASSES |= {"tydi": TydiF1, "nq": NqF1}


def shipped(name):
    settings = OmegaConf.to_container(OmegaConf.load(config_dir() / "metric" / f"{name}.yaml"))
    return {**settings, "language": "de"} if name == "mlqa" else settings


def choose(settings, examples=({**ANSWERED, "answers": TWICE},), has_unanswerable=False):
    return chosen_metric(settings, examples, has_unanswerable=has_unanswerable)


@pytest.mark.parametrize("name", CLASSES)
def test_every_shipped_file_chooses_its_metric(name):
    settings = shipped(name)
    assert set(settings) <= set(METRIC_KEYS)
    metric = choose(settings)
    metric = metric.metric if isinstance(metric, SpanScores) else metric
    assert type(metric) is CLASSES[name]
    for key, value in settings.items():
        if key not in ("name", "version_2_with_negative", "language"):
            assert getattr(metric, key, value) in (value, tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    ("version_2", "has_unanswerable", "expected"),
    [(None, False, SquadV1), (None, True, SquadV2), (True, False, SquadV2), (False, True, SquadV1)],
)
def test_squad_looks_whether_a_question_has_no_answer(version_2, has_unanswerable, expected):
    settings = {"version_2_with_negative": version_2}
    assert type(choose(settings, has_unanswerable=has_unanswerable)) is expected
    assert type(choose({**settings, "name": "squad"}, has_unanswerable=has_unanswerable)) is expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sqad"}, r"`metric.name=sqad` is no metric of answers; set it to one of squad, squad_v2, tydi, nq,"),
        (
            {"name": "nq", "language": "de"},
            r"nq does not take `metric.language`; it takes `metric.long_non_null_thres",
        ),
        ({"name": "squad", "use_stemmer": True}, r"squad does not take `metric.use_stemmer`; it takes no settings"),
        ({"name": "mlqa", "language": None}, r"`language=None` is not a language of MLQA"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        choose(settings)


@pytest.mark.parametrize("name", ["squad", "mlqa", "mrqa", "rouge"])
def test_a_metric_that_needs_answers_refuses_questions_without_before_any_work(name):
    settings = {**shipped(name), "version_2_with_negative": False}
    with pytest.raises(InputError, match=rf"1 of 2 questions .* 'b' for one, and the metric {name} cannot score them"):
        choose(settings, [ANSWERED, UNANSWERABLE], has_unanswerable=True)


class StubAnswers:
    """As :class:`portico.mrc.postprocess.Answers` has it; no answer passes the threshold yet."""

    null_odds = None

    def __init__(self, spans, passages, answer_types, probability=0.5):
        self.spans, self.passages, self.answer_types = dict.fromkeys(spans), passages, answer_types
        self.nbest = {key: [{"probability": probability}] if span else [] for key, span in spans.items()}
        self._best = spans

    def at_null_threshold(self, threshold):
        assert threshold == float("inf")
        self.spans = self._best
        return self


def test_spans_of_a_run_are_scored():
    target = {
        "start_positions": [4, 4],
        "end_positions": [8, 8],
        "passage_indices": [1, 1],
        "yes_no_answer": ["NONE"] * 2,
    }
    yes = {"start_positions": [-1], "end_positions": [-1], "passage_indices": [0], "yes_no_answer": ["YES"]}
    examples = [
        {**ANSWERED, "language": "thai", "target": target},
        {**UNANSWERABLE, "id": "c", "language": "thai", "target": yes},
        {**UNANSWERABLE, "language": "thai"},
        ANSWERED | {"id": "d"},
    ]
    spans = {"a": (4, 8), "c": None, "b": None, "d": (4, 8)}
    answers = StubAnswers(spans, {"a": 1, "c": 0, "b": -1, "d": 0}, {"a": 1, "c": 3, "b": 0, "d": 1})
    settings = {"name": "tydi", "passage_non_null_threshold": 1, "minimal_non_null_threshold": 1}
    metric = choose(settings, examples)
    for _ in range(2):  # an evaluation does not count the one before
        scores = metric(SimpleNamespace(answers=answers))
        assert scores["thai_minimal_f1"] == scores["thai_passage_f1"] == 1.0
        assert scores["UNKNOWN_minimal_f1"] == scores["UNKNOWN_passage_f1"] == 1.0
        assert scores["thai_passage_threshold"] == 0.0
        assert scores["UNKNOWN_minimal_threshold"] == 0.5


def test_null_odds_are_the_scores_of_spans():
    answers = StubAnswers({"a": (4, 8)}, {"a": 0}, {"a": 1})
    answers.null_odds = {"a": -2.5}
    metric = choose({"name": "nq", "short_non_null_threshold": 1, "long_non_null_threshold": 1})
    assert metric(SimpleNamespace(answers=answers))["short_answer_best_threshold"] == 2.5
