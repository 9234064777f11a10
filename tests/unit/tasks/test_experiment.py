"""Whole runs of the tasks: what they write in each mode, and what they refuse."""

import csv
import json
import re
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch

from portico.cli import compose
from portico.cli.composition import instantiate_experiment
from portico.compat.releases import is_before
from portico.errors import InputError
from portico.experiments import toy_records
from portico.experiments.experiment import NOT_OF_A_METRIC
from portico.tasks.classification import MultipleChoice, TextClassification, TokenClassification, entity_scores
from portico.tasks.data import TaskData
from portico.tasks.images import pictures_below, random_part
from portico.tasks.language_modeling import CausalLM
from portico.tasks.models import SmallBert
from portico.tasks.text_to_text import Translation

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

# In between, transformers needs torchvision to load an image processor.
READS_IMAGES = pytest.mark.skipif(
    not is_before("5.4") and is_before("5.20"), reason="needs torchvision or transformers 5.20"
)


def run(name, folder, *overrides, mode="train"):
    folder.mkdir()
    settings = compose([*QUIET, f"mode={mode}", *overrides], experiment=name)
    return getattr(instantiate_experiment(settings, str(folder)), mode)()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=READS_IMAGES) if name == "image_classification" else name for name in RUNS],
)
def test_trains_evaluates_and_predicts_offline(name, tmp_path, capsys):
    size, score, file = RUNS[name]
    trained = run(name, tmp_path / "run", *size)
    assert score in trained
    experiment = instantiate_experiment(compose([], experiment=name), str(tmp_path))
    for reported in trained:
        experiment.check_objective(reported)
    scores = {one.removeprefix("eval_") for one in trained if one.startswith("eval_")}
    assert scores - {*NOT_OF_A_METRIC, "samples"} == set(experiment.task.score_names)
    assert "Time of the whole run" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model.safetensors", "all_results.json", "trainer_state.json", "report.html"} <= written
    model = f"model.name_or_path={tmp_path}/run"
    evaluated = run(name, tmp_path / "scores", model, mode="evaluate")
    assert evaluated.keys() - trained.keys() == {"eval_model_preparation_time"}
    if name != "masked_lm":  # its masks are drawn anew
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
    tokens = [toy_records.report(draw)["tokens"] for _ in range(3)]
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
        ("[]", "No records for the 'train' split"),
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
        (
            ["task.label_column=class"],
            "for 'train' have no 'class'; they have sentence, label. Set `task.label_column` and `task.text_columns` "
            "to these names, perhaps task.label_column=label task.text_columns=.sentence.",
        ),
        (
            ["task.text_columns=[]"],
            r"`task.text_columns=\[\]` cannot be used; set it to one or two keys of a record\.",
        ),
        (["task.text_columns=[review]"], "A record has no 'review' but .* `task.text_colu"),
        (
            ["task.metrics=[mse]"],
            r"`task.metrics=\['mse'\]` has mse, which does not measure 2 classes; use any",
        ),
        (
            ["args.metric_for_best_model=eval_acuracy", "args.load_best_model_at_end=true"],
            "`args.metric_for_best_model=acuracy` is not a score of this run; set it to one of accuracy, ",
        ),
        (["task.metrics=[bleu]"], "`task.metrics=.*` has bleu; use any of accuracy, f1"),
        (["model.num_attention_heads=7"], "No BERT can be made with `model.num_attention_heads=7`"),
        (["model.hidden_size=-4"], "`model.hidden_size=-4` cannot be used; set it to an integer of 1 or more"),
        (["data.dataset_name=x", "data.train_file=a.json"], "both name the records"),
        (["task._target_=portico.Trainer"], "does not derive from portico.tasks.task.Task"),
    ],
)
def test_what_cannot_be_used_is_refused_before_training(overrides, message, tmp_path):
    with pytest.raises(InputError, match=message):
        run("text_classification", tmp_path / "run", *overrides)


@pytest.mark.parametrize(
    ("name", "objective", "nearest"),
    [("text_classification", "accuracy", "eval_accuracy"), ("summarization", "eval_rougel", "eval_rougeL")],
)
def test_an_unknown_objective_is_refused_before_the_training(name, objective, nearest, tmp_path):
    experiment = instantiate_experiment(compose([], experiment=name), str(tmp_path))
    with pytest.raises(InputError, match=f"`objective.metric={objective}` is .* set it to one of {nearest}, "):
        experiment.check_objective(objective)


def test_attention_is_computed_as_the_model_group_says():
    model, _ = SmallBert(attn_implementation="eager").load(TextClassification(), ["some words"], ["good", "bad"])
    assert model.config._attn_implementation == "eager"


def write_json(path, records):
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


def test_some_records_without_labels_are_predicted_all_and_not_measured(tmp_path):
    """Test sets of GLUE have -1 for want of a label."""
    run("text_classification", tmp_path / "run", *BERT)
    texts = [{"sentence": "the room was lovely .", "label": label} for label in ("positive", -1, None)]
    chosen = (f"model.name_or_path={tmp_path}/run", f"data.predict_file={write_json(tmp_path / 'a.json', texts)}")
    metrics = run("text_classification", tmp_path / "answers", *chosen, mode="predict")
    assert metrics["predict_samples"] == 3
    assert not {"predict_loss", "predict_accuracy"} & set(metrics)
    chosen = (chosen[0], f"data.validation_file={tmp_path}/a.json")
    with pytest.raises(InputError, match=r"2 of 3 records for 'validation' do not say .* such as number 2, "):
        run("text_classification", tmp_path / "scores", *chosen, mode="evaluate")


@pytest.mark.parametrize(
    ("name", "records", "message"),
    [
        ("text_classification", [{"text": "a", "label": "x"}] * 2, "All records to train on have the label 'x'"),
        (
            "text_classification",
            [{"text": "a", "label": label} for label in "xyz"],
            r"has f1, which does not measure 3 classes; use any of accuracy, matthews_correlation\.",
        ),
        (
            "text_classification",
            [{"text": "a", "label": 0.5}],
            r"has f1, which does not measure numbers; use any of mse, pearson, spearmanr\.",
        ),
        (
            "token_classification",
            [{"tokens": ["a", "b"], "ner_tags": ["O"]}],
            "2 words in 'tokens' and 1 tags in 'ner_tags'",
        ),
        ("multiple_choice", [{**toy_records.story(Random(0)), "label": 4}], "The label 4 .* of an ending, 0 to 3"),
        ("causal_lm", [{"text": "one two"}], "The 1 records for 'train' are shorter together than one block"),
        ("summarization", [{"document": "a"}], "1 of 1 records for 'train' do not say .* such as number 1"),
        ("summarization", [{"document": "", "summary": ""}], "No records for the 'train' split"),
    ],
)
def test_records_that_cannot_be_used_are_refused_before_training(name, records, message, tmp_path):
    path = write_json(tmp_path / "a.json", records)
    metrics = ("task.metrics=[f1]",) if name == "text_classification" else ()
    with pytest.raises(InputError, match=message):
        run(name, tmp_path / "run", f"data.train_file={path}", f"data.validation_file={path}", *metrics)


def test_empty_records_are_left_out_with_a_warning(tmp_path, caplog):
    # As in `run_summarization.py`: a half of the pair is empty or None.
    halves = [{"document": "", "summary": "x"}, {"document": None, "summary": "x"}, {"document": "x", "summary": None}]
    path = write_json(tmp_path / "a.json", [toy_records.article(Random(0)), *halves])
    metrics = run("summarization", tmp_path / "run", f"data.train_file={path}", f"data.validation_file={path}", *T5)
    assert metrics["train_samples"] == 1
    assert "3 of 4 records for 'train' are empty and left out." in caplog.text


def test_the_right_ending_may_be_named_by_its_digits():
    """As by datasets of the hub, whose labels have names."""
    record = toy_records.story(Random(0))
    named = {**record, "label": str(record["label"])}
    assert MultipleChoice().golds([named]) == MultipleChoice().golds([record])


@pytest.mark.parametrize(
    ("allowed", "positions", "expected"), [(2048, 4096, 2048), (10**30, 512, 512), (10**30, 0, 1024)]
)
def test_blocks_are_as_long_as_in_the_script(allowed, positions, expected):
    """`run_clm.py` takes what the tokenizer allows, and 1024 at most only where the model allows less than that."""
    task, config = CausalLM(), SimpleNamespace(**({"max_position_embeddings": positions} if positions else {}))
    task.adapt(None, SimpleNamespace(config=config), None)

    class Tokenizer:
        model_max_length = allowed

        def __call__(self, texts):
            return {"input_ids": [[0] * 5000]}

    assert len(task.features([{"text": ""}], Tokenizer())[0]["input_ids"]) == expected


def test_texts_of_any_length_are_continued(tmp_path):
    size = RUNS["causal_lm"][0]
    run("causal_lm", tmp_path / "run", *size, "model.n_positions=32")
    texts = [{"text": "the soup of this meal was lovely . " * 9}, {"text": ""}]
    chosen = (f"model.name_or_path={tmp_path}/run", f"data.predict_file={write_json(tmp_path / 'a.json', texts)}")
    run("causal_lm", tmp_path / "answers", *chosen, "task.max_new_tokens=4", mode="predict")
    first, second = (tmp_path / "answers/generated_predictions.txt").read_text().splitlines()
    assert first.startswith(("the soup of this meal was lovely. " * 9).strip()[:100])
    assert second == ""


def test_pictures_without_a_folder_of_their_own_have_no_label(tmp_path):
    (tmp_path / "rows").mkdir()
    picture = toy_records.picture(Random(0))["image"]
    picture.save(tmp_path / "a.png")
    picture.save(tmp_path / "rows/b.png")
    read = list(pictures_below(tmp_path))
    assert read == [{"image": f"{tmp_path}/a.png"}, {"image": f"{tmp_path}/rows/b.png", "label": "rows"}]
    (tmp_path / "c.png").write_text("no picture")
    with pytest.raises(InputError, match=r"c\.png: not a picture that Pillow reads"):
        list(pictures_below(tmp_path))


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
    assert task._align_labels([0, 2], [None, 0, 0, 1, 1, None]) == [-100, 0, 1, 2, 2, -100]


@pytest.mark.parametrize(
    "make", [toy_records.review, toy_records.report, toy_records.story, toy_records.line, toy_records.article]
)
def test_the_same_seed_makes_the_same_records(make):
    records = [[make(draw) for _ in range(50)] for draw in (Random(1), Random(1), Random(2))]
    assert records[0] == records[1] != records[2]


@pytest.mark.parametrize("task", [TextClassification(), CausalLM(), Translation()], ids=lambda one: type(one).__name__)
def test_what_is_held_out_is_not_trained_on(task):
    data = TaskData(num_train=1000, num_validation=200)
    train, held_out = data.load(task, "train"), data.load(task, "validation")
    assert len(held_out) == 200
    assert not [record for record in held_out if record in train]


def test_few_different_records_are_repeated():
    """Rather than to search forever for one that is not trained on."""
    task = TextClassification()
    task.made = lambda draw: {"sentence": "a", "label": draw.choice("xy")}
    assert len(TaskData(num_train=50, num_validation=5).load(task, "validation")) == 5


def test_the_report_shows_what_was_predicted(tmp_path):
    run("text_classification", tmp_path / "run", *BERT)
    page = Path(tmp_path / "run/report.html").read_text()
    assert '<p class="kicker">Report of a run</p>' in page
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


# First mistakes of a command line, each with what its refusal names. The data of an experiment takes minutes to read.
WRONG_BEFORE_DATA = {
    "strategy.strategy=dpd": "did you mean 'ddp'",
    "strategy.accelerator=gpuu": "did you mean 'gpu'",
    "strategy.precision=fp8": "`precision='fp8'`",
    "strategy.devices=0": "`devices=0`",
    "strategy.devices=-2": "`devices=-2`",
    "strategy.num_nodes=0": "`num_nodes=0`",
    "args.resume_from_checkpoint=true": "holds no complete `checkpoint-N`",
    "args.resume_from_checkpoint=elsewhere": "`resume_from_checkpoint=elsewhere` is not a folder",
    "args.resume_from_checkpoint=": "`resume_from_checkpoint=` is not a folder",
    "args.push_to_hub=true": "cannot be made on the hub",
    "args.lr_scheduler_kwargs={nonsense:1}": "`lr_scheduler_kwargs={'nonsense': 1}`",
    "args.lr_scheduler_type=polynomial args.lr_scheduler_kwargs={power:much}": "{'power': 'much'}`",
    "model.name_or_path=./nothere": "`model.name_or_path=./nothere` does not exist",
    "model.name_or_path=nothere": "`model.name_or_path=nothere` is not a folder, and was not found on the hub",
    "model.name_or_path=no--such": "`model.name_or_path=no--such` is not a folder",
    "model.name_or_path=${oc.env:HOME}": "contains no model (config.json is missing)",
    "args.report_to=wandb": "`report_to=wandb`",
    "args.report_to=wandbb": "`report_to=wandbb`",
    "args.optim=adamm": "adamm",
    "args.lr_scheduler_type=lin": "lin",
    "args.per_device_train_batch_size=0": "`args.per_device_train_batch_size=0`",
    "args.use_liger_kernel=true": "liger-kernel",
    "args.torch_compile_backend=inducto": "torch_compile_backend",
    "args.deepspeed=ds.json": "deepspeed",
    "args.accelerator_config=none.json": "accelerator_config",
    "args.corrections=[resume]": "resume",
    "args.optim_args=beta3=1": "beta3",
    "trainer.lightning_kwargs={max_epoch:3}": "max_epoch",
    "trainer.compute_metrics=f1": "compute_metrics",
    "callbacks=early_stopping args.eval_strategy=no args.load_best_model_at_end=false": "Early stopping",
}


@pytest.mark.parametrize("wrong", WRONG_BEFORE_DATA)
def test_wrong_settings_are_refused_before_data_is_read(wrong, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    read = []
    monkeypatch.setattr(TaskData, "load", lambda *_: read.append("data") or [])
    with pytest.raises(InputError, match=re.escape(WRONG_BEFORE_DATA[wrong])):
        run("text_classification", tmp_path / "run", *wrong.split(" "))
    assert not read


def test_no_repository_is_made_for_data_that_are_refused(tmp_path, monkeypatch):
    calls = []
    hub = SimpleNamespace(
        whoami=lambda **_: calls.append("whoami"), create_repo=lambda *_, **__: calls.append("create_repo")
    )
    monkeypatch.setattr("portico.compat.transformers.hf_api", lambda: hub)
    with pytest.raises(InputError, match="no 'class'"):
        run("text_classification", tmp_path / "run", "args.push_to_hub=true", "task.label_column=class")
    assert calls == ["whoami"]
