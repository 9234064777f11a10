import logging
import sys

import pytest

from portico.data.sentences import get_sentence_splitter
from portico.errors import InputError, MissingPackageError
from portico.mrc.primeqa import MLQA, NQF1, ROUGE, SQUAD, TyDiF1


def squad_records(text="The Mill", golds=("mill", "river")):
    return [{"id": "a", "prediction_text": text}], [{"id": "a", "answers": {"text": list(golds), "answer_start": [0]}}]


def span_records(language="finnish", yes_no=0):
    predictions = [
        {
            "example_id": "a",
            "start_position": 24,
            "end_position": 44,
            "passage_index": 3,
            "yes_no_answer": yes_no,
            "confidence_score": 0.5,
        }
    ]
    annotator = {
        "example_id": "a",
        "start_position": 17,
        "end_position": 42,
        "passage_index": 3,
        "yes_no_answer": 0,
        "language": language,
        "document_plaintext": "",
        "question": "",
    }
    return predictions, [[annotator, annotator]]


@pytest.fixture
def no_punkt(monkeypatch):
    """As where the data of NLTK are not installed."""
    import nltk

    def missing(text):
        raise LookupError

    monkeypatch.setattr(nltk, "sent_tokenize", missing)
    get_sentence_splitter.cache_clear()
    yield
    get_sentence_splitter.cache_clear()


def test_compute_in_one_call_or_after_batches_and_then_anew():
    predictions, references = squad_records()
    metric = SQUAD()
    assert metric.compute(predictions=predictions, references=references) == {"exact_match": 100.0, "f1": 100.0}
    wrong = [{"id": "b", "prediction_text": "x"}], [{"id": "b", "answers": {"text": ["y"], "answer_start": [0]}}]
    metric.add(prediction=wrong[0][0], reference=wrong[1][0])
    metric.add_batch(predictions=predictions, references=references)
    assert metric.compute() == {"exact_match": 50.0, "f1": 50.0}
    assert metric.compute(predictions=predictions, references=references)["f1"] == 100.0


def test_every_metric_takes_the_options_of_all():
    options = {
        "passage_non_null_threshold": 1,
        "span_non_null_threshold": 1,
        "verbose": True,
        "dataset_config_name": "mlqa.en.de",
    }
    for metric, records in ((SQUAD(), squad_records()), (MLQA(), squad_records()), (TyDiF1(), span_records())):
        predictions, references = records
        assert metric.compute(predictions=predictions, references=references, **options)


def test_mlqa_takes_the_language_from_the_name_of_the_data():
    predictions, references = squad_records("Der Turm", ["turm"])
    for name, expected in (("mlqa.de.en", 100.0), ("mlqa.en.de", 0.0)):
        scores = MLQA().compute(predictions=predictions, references=references, dataset_config_name=name)
        assert scores["exact_match"] == expected
    with pytest.raises(InputError, match=r"`dataset_config_name` is missing; set it"):
        MLQA().compute(predictions=predictions, references=references)


def test_tydi():
    predictions, references = span_records()
    scores = TyDiF1().compute(predictions=predictions, references=references)
    assert scores == {
        "avg_passage_f1": 1.0,
        "avg_passage_recall": 1.0,
        "avg_passage_precision": 1.0,
        "avg_minimal_f1": pytest.approx(0.8),
        "avg_minimal_recall": pytest.approx(0.8),
        "avg_minimal_precision": pytest.approx(0.8),
    }
    thresholds = {"passage_non_null_threshold": 3, "span_non_null_threshold": 3}
    scores = TyDiF1().compute(predictions=predictions, references=references, **thresholds)
    assert set(scores.values()) == {0.0}


def test_tydi_scores_english_where_there_is_nothing_else():
    predictions, references = span_records("english")
    assert TyDiF1().compute(predictions=predictions, references=references)["avg_passage_f1"] == 1.0


def test_tydi_without_annotators_is_none():
    predictions, _ = span_records()
    assert TyDiF1().compute(predictions=predictions, references=[[]]) is None


def test_tydi_counts_yes_beside_a_span_as_yes():
    predictions, references = span_records(yes_no=3)
    assert TyDiF1().compute(predictions=predictions, references=references)["avg_minimal_f1"] == 0.0
    yes = [[{**one, "yes_no_answer": 3} for one in references[0]]]
    assert TyDiF1().compute(predictions=predictions, references=yes)["avg_minimal_f1"] == 1.0


def test_tydi_logs_languages_when_asked(caplog):
    predictions, references = span_records()
    with caplog.at_level(logging.INFO):
        TyDiF1().compute(predictions=predictions, references=references, verbose=True)
    assert "finnish_minimal_f1: 0.8000" in caplog.text


def test_nq_gives_all_answers_whatever_their_scores():
    predictions, references = span_records()
    scores = NQF1().compute(predictions=predictions, references=references)
    expected = {"long_answer_n": 1, "long_answer_f1": 1.0, "long_answer_precision": 1.0, "long_answer_recall": 1.0}
    short = {"short_answer_n": 1, "short_answer_f1": 0.0, "short_answer_precision": 0.0, "short_answer_recall": 0.0}
    assert scores == {**expected, **short}


@pytest.mark.usefixtures("no_punkt")
def test_rouge(caplog):
    predictions, references = squad_records("The old mill. It runs", ["river", "The old mill"])
    scores = ROUGE().compute(predictions=predictions, references=references)
    assert scores == {"kilt_rougeL": 75.0, "google_rougeL": 75.0, "gen_len": 4.0}
    assert "sentence splitter is not installed" in caplog.text


def test_rouge_without_nltk(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    get_sentence_splitter.cache_clear()
    with pytest.raises(
        MissingPackageError,
        match=r"nltk, which splits sentences, is not installed; install it with `pip install 'portico\[rou",
    ):
        get_sentence_splitter()


def test_predictions_alone_are_refused():
    with pytest.raises(InputError, match="only one of `predictions` and `references`"):
        SQUAD().compute(predictions=[])
