"""Whole runs of the tasks: what they write in each mode, and what they refuse."""

import csv
import json
from pathlib import Path
from random import Random

import pytest
import torch

from portico.cli import compose
from portico.cli.compose import experiment_of
from portico.errors import InputError
from portico.tasks import corpus
from portico.tasks.classification import MultipleChoice, TextClassification, TokenClassification, entity_scores
from portico.tasks.data import TaskData
from portico.tasks.images import random_part
from portico.tasks.language_modeling import CausalLM

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

QUIET = (
    *("args.report_to=none", "args.disable_tqdm=true", "args.use_cpu=true", "args.per_device_train_batch_size=4"),
    *("data.num_train=24", "data.num_validation=6", "args.max_steps=2"),
)
BERT = (
    *("model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=2"),
    "model.intermediate_size=16",
)
T5 = ("model.d_model=16", "model.d_kv=8", "model.d_ff=16", "model.num_layers=1", "model.num_heads=2")
# For each experiment: its model's size, a score, and the file of mode=predict.
RUNS = {
    "text_classification": (BERT, "eval_accuracy", "predict_results.txt"),
    "token_classification": (BERT, "eval_f1", "predictions.txt"),
    "multiple_choice": (BERT, "eval_accuracy", "predictions.txt"),
    "causal_lm": (("model.n_embd=16", "model.n_layer=1", "model.n_head=2"), "perplexity", "generated_predictions.txt"),
    "masked_lm": (BERT, "perplexity", "predictions.txt"),
    "summarization": (T5, "eval_rouge2", "generated_predictions.txt"),
    "translation": (T5, "eval_bleu", "generated_predictions.txt"),
    "image_classification": (BERT, "eval_accuracy", "predict_results.txt"),
}


def run(name, folder, *overrides, mode="train"):
    folder.mkdir()
    settings = compose([*QUIET, f"mode={mode}", *overrides], experiment=name)
    return getattr(experiment_of(settings, str(folder)), mode)()


@pytest.mark.parametrize("name", RUNS)
def test_trains_evaluates_and_predicts_offline(name, tmp_path, capsys):
    size, score, file = RUNS[name]
    trained = run(name, tmp_path / "run", *size)
    assert score in trained
    assert "Time of the whole run" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model.safetensors", "all_results.json", "trainer_state.json", "report.html"} <= written
    model = f"model.name_or_path={tmp_path}/run"
    evaluated = run(name, tmp_path / "scores", model, mode="evaluate")
    assert evaluated.keys() <= trained.keys()
    if name not in (
        "masked_lm",
        "image_classification",
    ):  # masks are drawn anew; its weights are saved and found again
        assert evaluated[score] == trained[score]
    assert (tmp_path / "scores/report.html").is_file()
    predicted = run(name, tmp_path / "answers", model, mode="predict")
    assert predicted["predict_samples"] == 6
    lines = (tmp_path / "answers" / file).read_text().splitlines()
    assert len(lines) == (7 if name == "text_classification" else 6)


@pytest.mark.parametrize("mode", ["evaluate", "predict"])
@pytest.mark.parametrize("name", ["text_classification", "mrc"])
def test_without_training_a_trained_model_is_needed(name, mode, tmp_path):
    with pytest.raises(InputError, match=r"model\.name_or_path=null"):
        run(name, tmp_path / "run", mode=mode)


def test_records_without_labels_are_predicted(tmp_path):
    draw = Random(0)
    run("token_classification", tmp_path / "run", *BERT)
    tokens = [corpus.report(draw)["tokens"] for _ in range(3)]
    (tmp_path / "new.json").write_text("\n".join(json.dumps({"tokens": words}) for words in tokens))
    chosen = (f"model.name_or_path={tmp_path}/run", f"data.predict_file={tmp_path}/new.json")
    assert "predict_f1" not in run("token_classification", tmp_path / "answers", *chosen, mode="predict")
    lines = (tmp_path / "answers/predictions.txt").read_text().splitlines()
    assert [len(line.split()) for line in lines] == [len(words) for words in tokens]


def write_csv(path, records):
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, records[0])
        table.writeheader()
        table.writerows(records)


def test_numbers_in_a_table_are_numbers_and_ten_comes_after_nine(tmp_path):
    write_csv(tmp_path / "a.csv", [{"text": str(number), "label": number} for number in (10, 9, 1)])
    data = TaskData(train_file=str(tmp_path / "a.csv"))
    task = TextClassification()
    assert task.classes(data.load(task, "train")) == [1, 9, 10]


def test_a_text_file_has_a_record_for_each_line(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert TaskData(train_file=str(tmp_path / "a.txt")).load(CausalLM(), "train") == [
        {"text": "one\n"},
        {"text": "\n"},
        {"text": "two\n"},
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"a\.json: the file is empty"),
        ("[]", "There are no records in the data for 'train'"),
        ("{", r"a\.json.*line 1"),
        ("[1]", r"a\.json, record 1: not an object but '1'"),
        ('{"sentence": "\\ud800", "label": "a"}', r"a\.json, line 1: not valid Unicode"),
        ('{"sentence": "a", "label": [1]}', r"The label '\[1\]' in 'label' cannot be used"),
        ('{"sentence": "a", "label": 1}\n{"sentence": "a", "label": "x"}', "The label 'x' in 'label' cannot be used"),
    ],
)
def test_a_broken_file_is_refused(content, message, tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(content)
    files = (f"data.train_file={tmp_path}/a.json", f"data.validation_file={tmp_path}/b.json")
    with pytest.raises(InputError, match=message):
        run("text_classification", tmp_path / "run", *files, *BERT)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.train_file=none.json"], "`data.validation_file` is not set|none.json: no such file"),
        (["task.label_column=class"], "A record has no 'class' but sentence, label; set `task.label_column`"),
        (["task.metrics=[bleu]"], "`task.metrics=.*` has bleu; use any of accuracy, f1"),
        (["model.name_or_path=./none"], "cannot be loaded as a model for SequenceClassification"),
        (["model.num_attention_heads=7"], "No small BERT can be made with `model.num_attention_heads=7`"),
        (["data.dataset_name=x", "data.train_file=a.json"], "both name the records"),
        (["task._target_=portico.Trainer"], "does not derive from portico.tasks.task.Task"),
    ],
)
def test_what_cannot_be_used_is_refused_before_training(overrides, message, tmp_path):
    with pytest.raises(InputError, match=message):
        run("text_classification", tmp_path / "run", *overrides)


def test_a_label_that_the_model_does_not_know_is_named(tmp_path):
    run("text_classification", tmp_path / "run", *BERT)
    (tmp_path / "new.json").write_text('{"sentence": "so so", "label": "neutral"}\n')
    chosen = (f"model.name_or_path={tmp_path}/run", f"data.validation_file={tmp_path}/new.json")
    with pytest.raises(InputError, match=r"The label 'neutral' is not one of .* negative, positive"):
        run("text_classification", tmp_path / "scores", *chosen, mode="evaluate")


@pytest.mark.parametrize(
    ("predicted", "gold", "scores"),
    [
        # What seqeval 1.2.2 gives.
        ("B-A I-A O", "B-A I-A O", (1.0, 1.0, 1.0, 1.0)),
        ("I-A I-A O", "B-A I-A O", (1.0, 1.0, 1.0, 2 / 3)),
        ("B-A I-B O", "B-A I-A O", (0.0, 0.0, 0.0, 2 / 3)),
        ("B-A B-A O B-B", "B-A I-A O B-B", (1 / 3, 0.5, 0.4, 0.75)),
        ("O O", "B-A O", (0.0, 0.0, 0.0, 0.5)),
    ],
)
def test_names_are_scored_as_wholes(predicted, gold, scores):
    found = entity_scores([predicted.split()], [gold.split()])
    assert [found[name] for name in ("precision", "recall", "f1", "accuracy")] == pytest.approx(scores)


def test_label_all_tokens_continues_a_name():
    task = TokenClassification(label_all_tokens=True)
    task.labels = ["B-A", "I-A", "O"]
    assert task._aligned([0, 2], [None, 0, 0, 1, 1, None]) == [-100, 0, 1, 2, 2, -100]


@pytest.mark.parametrize("make", [corpus.review, corpus.report, corpus.story, corpus.line, corpus.article])
def test_the_same_seed_makes_the_same_records(make):
    records = [[make(draw) for _ in range(50)] for draw in (Random(1), Random(1), Random(2))]
    assert records[0] == records[1] != records[2]


def test_training_and_validation_differ():
    data, task = TaskData(num_train=50, num_validation=50), MultipleChoice()
    assert data.load(task, "train") != data.load(task, "validation")


def test_the_report_shows_what_was_predicted(tmp_path):
    run("text_classification", tmp_path / "run", *BERT)
    page = Path(tmp_path / "run/report.html").read_text()
    assert "6 held-out records." in page
    assert '<th scope="col">expected</th>' in page


@pytest.mark.parametrize(
    ("size", "least_area", "parts"),
    [
        # What RandomResizedCrop.get_params of torchvision 0.28 draws after the same seed.
        ((40, 25), 0.08, [(0, 3, 25, 21), (10, 3, 20, 18), (2, 1, 23, 22), (24, 13, 9, 11), (9, 0, 29, 25)]),
        ((100, 10), 0.9, [(43, 0, 13, 10), (43, 0, 13, 10)]),
    ],
)
def test_random_parts_are_those_of_torchvision(size, least_area, parts):
    torch.manual_seed(0)
    assert [random_part(*size, least_area) for _ in parts] == parts
