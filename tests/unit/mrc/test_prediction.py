import gzip
import json

import pytest

from mrc_data import DOCUMENT, TOKENS, natural_questions, to_squad, tydi_of_google
from portico.cli import compose
from portico.errors import InputError
from portico.experiments.experiment import build_experiment
from portico.mrc import AnswerCalibration, read_examples
from portico.mrc.datasets.reader import read_questions

GROUPS = {
    "args": {"report_to": "none", "disable_tqdm": True, "eval_strategy": "steps", "load_best_model_at_end": True},
    "data": {"train_file": None},
    "preprocess": {"max_seq_length": 64, "doc_stride": 16, "vocab_size": 400},
    "postprocess": {"n_best_size": 5, "calibrate": True},
    "metric": {},
    "strategy": {"accelerator": "cpu", "devices": 1},
}


def predict(tmp_path, **changes):
    groups = {name: {**values, **changes.get(name, {})} for name, values in GROUPS.items()}
    settings = {"_target_": "portico.mrc.experiment.MRCExperiment", **groups, "model": changes["model"]}
    return build_experiment(settings, str(tmp_path / "run")).predict()


@pytest.fixture
def question_file(tmp_path, questions):
    path = tmp_path / "questions.jsonl"
    rows = [{"id": q["id"], "question": q["question"], "context": q["context"]} for q in questions[:6]]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_the_answers_to_a_file_are_written(tmp_path, model_folder, question_file, questions):
    before = {path.name: path.read_bytes() for path in model_folder.iterdir()}
    metrics = predict(tmp_path, model={"name_or_path": str(model_folder)}, data={"predict_file": question_file})
    assert metrics["predict_samples"] == 6
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written == {
        "predict_predictions.json",
        "predict_nbest_predictions.json",
        "predict_answers.json",
        "predict_answers.txt",
    }
    answers = json.loads((tmp_path / "run" / "predict_answers.json").read_text(encoding="utf-8"))
    predictions = json.loads((tmp_path / "run" / "predict_predictions.json").read_text())
    for answer, question in zip(answers, questions, strict=False):
        assert answer["answer"] == predictions[question["id"]]
        assert answer["answer"] == question["context"][answer["start"] : answer["end"]]
    readable = (tmp_path / "run" / "predict_answers.txt").read_text(encoding="utf-8")
    assert questions[5]["question"] in readable
    assert {path.name: path.read_bytes() for path in model_folder.iterdir()} == before


def test_a_calibration_tells_when_there_is_no_answer(tmp_path, model_folder, question_file, caplog):
    copy = tmp_path / "model"
    copy.mkdir()
    for path in model_folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    AnswerCalibration(null_score_diff_threshold=-100.0).save(copy)
    predict(
        tmp_path,
        model={"name_or_path": str(copy)},
        data={"predict_file": question_file, "train_file": "train.json"},
        postprocess={"null_score_diff_threshold": "best"},
    )
    predictions = json.loads((tmp_path / "run" / "predict_predictions.json").read_text())
    assert set(predictions.values()) == {""}
    assert (tmp_path / "run" / "predict_null_odds.json").is_file()
    assert "(no answer)" in (tmp_path / "run" / "predict_answers.txt").read_text(encoding="utf-8")
    assert "`data.train_file=train.json` has no effect with `mode=predict`" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {}}, r"`model.name_or_path=null`, `data.predict_file=null` and .*; set the first to the folder"),
        ({"model": {"name_or_path": "/no"}}, r"`data.predict_file=null` and .*; set the first"),
        ({"model": {"name_or_path": "/no"}, "data": {"predict_file": "/no.json"}}, r"/no.json: no such file"),
        ({"model": {}, "data": {"predict_file": 3}}, r"`data.predict_file=3` cannot be used"),
        ({"model": {}, "postprocess": {"calibrate": 2}}, r"`postprocess.calibrate=2` cannot be used"),
    ],
)
def test_bad_settings_are_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        predict(tmp_path, **changes)


def test_windows_must_fit_the_model(tmp_path, model_folder, question_file):
    changes = {"data": {"predict_file": question_file}, "preprocess": {"max_seq_length": 128}}
    with pytest.raises(InputError, match=r"`preprocess.max_seq_length=128` is more than the model takes \(96"):
        predict(tmp_path, model={"name_or_path": str(model_folder)}, **changes)


def test_long_questions_are_cut_as_in_training(tmp_path, model_folder):
    (tmp_path / "long.json").write_text(json.dumps([{"question": "who " * 200, "context": "Anna lives in Oslo."}]))
    changes = {"model": {"name_or_path": str(model_folder)}, "data": {"predict_file": str(tmp_path / "long.json")}}
    with pytest.raises(InputError, match=r"^`preprocess.doc_stride=16` does not fit: with `preprocess.max_seq"):
        predict(tmp_path, **changes)
    assert predict(tmp_path, **changes, preprocess={"max_q_char_len": 20})["predict_samples"] == 1


class OwnAnswers:
    def __init__(self, n_best_size, calibrate):
        pass

    def build(self, model, tokenizer, version_2_with_negative):
        raise AssertionError


def test_a_post_processing_of_the_user_is_not_predicted_with(tmp_path):
    changes = {"model": {"name_or_path": "x"}, "data": {"predict_file": "x.json"}}
    with pytest.raises(InputError, match=r"a post-processing of portico, but .*`postprocess._target_=.*OwnAnswers`"):
        predict(tmp_path, **changes, postprocess={"_target_": f"{__name__}.OwnAnswers"})


def asked(key, question, context):
    return {"id": key, "question": question, "context": context}


def test_questions_of_any_layout(tmp_path, questions):
    flat = [{"question": "a?", "context": ["x", "y"]}, {"qid": 7, "question": "b?", "context": "z"}]
    expected = [asked("0", "a?", ["x", "y"]), asked("7", "b?", "z")]
    (tmp_path / "array.json").write_text(json.dumps(flat))
    (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, flat)).encode()))
    (tmp_path / "data.json").write_text(json.dumps({"data": flat}))
    (tmp_path / "one.json").write_text(json.dumps(flat[1]))
    for name in ("array.json", "lines.jsonl.gz", "data.json"):
        assert read_questions(tmp_path / name) == expected
    assert read_questions(tmp_path / "one.json") == expected[1:]
    (tmp_path / "squad.json").write_text(json.dumps(to_squad(questions)), encoding="utf-8")
    assert {one["id"]: one["context"] for one in read_questions(tmp_path / "squad.json")} == {
        question["id"]: question["context"] for question in questions
    }


QUESTION = {"question": "a?", "context": "x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "a?"}', r"line 1: `context` is missing: .*has question, context"),
        ('[{"question": "a?", "context": "x"}, 5]', r"record 2: a record must be a JSON object; got 5"),
        ('[{"question": 5, "context": "x"}]', r"record 1: `question` must be a string; got 5"),
        ('[{"question": "\\ud800", "context": "x"}]', r"record 1: `question` is not valid Unicode"),
        ('[{"question": "a?", "context": {"a": "x"}}]', r"record 1: `context` must be a list of one or more strings"),
        (
            '[{"id": 7, "question": "a?", "context": "x"}, {"qid": "7", "question": "b?", "context": "x"}]',
            r"duplicate id",
        ),
        ('[{"id": true, "question": "a?", "context": "x"}]', r"`id` must be a string or an integer; got True"),
        (
            json.dumps({"id": "e", "input": "Who?", "passages": []}),
            r"line 1, id 'e': `passages` must be a list of one",
        ),
        (json.dumps(tydi_of_google(document_plaintext=5)), r"line 1, id -7: `document_plaintext` must be a string"),
        (json.dumps(natural_questions(document={})), r"line 1, id '797803103760793766': `tokens` is missing"),
    ],
)
def test_files_without_questions_are_refused(tmp_path, text, message):
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_questions(tmp_path / "file.json")


def test_unusable_questions_can_be_skipped(tmp_path, model_folder, caplog):
    path = tmp_path / "file.json"
    path.write_text(json.dumps([QUESTION, {"question": 5, "context": "x"}, QUESTION]))
    changes = {"model": {"name_or_path": str(model_folder)}, "data": {"predict_file": str(path)}}
    with pytest.raises(InputError, match=r"record 2: `question` must be a string.*`data.skip_invalid=true`"):
        predict(tmp_path, **changes)
    assert predict(tmp_path, **{**changes, "data": {**changes["data"], "skip_invalid": True}})["predict_samples"] == 2
    assert "left out 1 unusable record(s)" in caplog.text


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (tydi_of_google(annotations=[{}]), asked("-7", "Which town?", DOCUMENT)),
        (natural_questions(annotations=5), asked("797803103760793766", "where is oslo", " ".join(TOKENS))),
        ({"id": "e", "input": "Who?", "passages": [{"text": "Ana."}]}, asked("e", "Who?", ["Ana."])),
    ],
)
def test_questions_of_data_sets_are_read_too(tmp_path, record, expected):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(record), encoding="utf-8")
    assert read_questions(path) == [expected]
    assert read_questions([record]) == [expected]


@pytest.mark.parametrize("form", ["text", "tokens"])
def test_natural_questions_need_no_annotations(tmp_path, form):
    record = {"example_id": 7, "question_text": "where is oslo", "document_url": ""}
    document = {"document_text": " ".join(TOKENS)}
    if form == "tokens":
        document = {"document_tokens": [{"token": token, "html_token": False} for token in TOKENS]}
    path = tmp_path / "test.jsonl"
    for more in ({}, {"long_answer_candidates": [{"start_token": 0, "end_token": 3, "top_level": True}]}):
        path.write_text(json.dumps({**record, **document, **more}))
        for name in (None, "natural_questions"):
            (asked,) = read_questions(path, format=name)
            assert asked == {"id": "7", "question": "where is oslo", "context": " ".join(TOKENS)}
    with pytest.raises(InputError, match=r"`long_answer_candidates` is missing|`annotations` is missing"):
        read_examples(path)


class OwnModel:
    def load(self, texts, preprocess):
        raise AssertionError("not loaded")


def test_a_model_without_a_folder_cannot_predict(tmp_path):
    with pytest.raises(InputError, match=r"which `model._target_=.*OwnModel` does not; set `model._target_=port"):
        predict(tmp_path, model={"_target_": f"{__name__}.OwnModel"}, data={"predict_file": "questions.json"})


def test_an_evaluation_has_the_settings_of_the_run(tmp_path):
    run = {
        "preprocess": {"_target_": "portico.mrc.config.WindowPreprocessing", "max_seq_length": 100, "doc_stride": 20},
        "postprocess": {"_target_": "own.Words", "build": 1},
        "metric": {"_target_": "portico.mrc.Mlqa", "language": "de", "headline": "exact_match"},
        "args": {"learning_rate": 5.0},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(run))
    for mode in ("evaluate", "predict"):
        words = [f"mode={mode}", f"model.name_or_path={tmp_path}"]
        settings = compose([*words, "preprocess.doc_stride=10"])
        sizes = {name: settings["preprocess"][name] for name in ("max_seq_length", "doc_stride")}
        assert sizes == {"max_seq_length": 100, "doc_stride": 10}
        assert (settings["metric"]["_target_"], settings["metric"]["language"]) == ("portico.mrc.Mlqa", "de")
        assert (
            settings["postprocess"]["_target_"] == "portico.mrc.config.SpanAnswers"
        )  # a class of a file is not taken
        assert settings["args"]["learning_rate"] != 5
        assert compose([*words, "metric=squad"])["metric"]["_target_"] == "portico.mrc.SquadV1"
    assert compose([f"model.name_or_path={tmp_path}"])["preprocess"]["max_seq_length"] == 192
    (tmp_path / "config.yaml").write_text("- no: settings")
    assert compose(words)["preprocess"]["max_seq_length"] == 192
