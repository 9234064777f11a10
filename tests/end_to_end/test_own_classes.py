"""Classes of a user's own package, named on the command line: data, model, metric, trainer and task."""

import json
import re

import pytest
from safetensors.torch import load_file

SMALL = ("debug=default", "args.use_cpu=true", "paths.output_dir=run")
SHAPE = ("hidden_size=32", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=32")

# What debug=default sets for the data of portico.
NO_SAMPLES = [f"~data.{key}" for key in ("num_train", "num_validation", "max_train_samples", "max_eval_samples")]

# The whole package, as a user would write it: nothing of it derives from a class of portico but the trainer.
PACKAGE = '''
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import PreTrainedTokenizerFast
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from portico import MRCTrainer


@dataclass(kw_only=True)
class Towns:
    """Questions about towns.

    Args:
        size: Questions of each set.
    """

    size: int = 4

    def load(self):
        return self._records("train"), self._records("dev")

    def _records(self, split):
        return [self._record(f"{split}{n}", f"Town{n} lies in Land{n}.", f"Land{n}") for n in range(self.size)]

    def _record(self, name, context, answer):
        answers = {"text": [answer], "answer_start": [context.index(answer)]}
        return {"id": name, "question": "Where is it?", "context": context, "answers": answers}


class Broken:
    def load(self):
        return [1, 2, 3]


# Hugging Face finds the labels start_positions and end_positions by this part of the name.
class PointerForQuestionAnswering(nn.Module):
    def __init__(self, vocab_size, size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.scores = nn.Linear(size, 2)

    def forward(self, input_ids, attention_mask=None, start_positions=None, end_positions=None):
        start, end = self.scores(self.embedding(input_ids)).unbind(-1)
        loss = None
        if start_positions is not None:
            cross_entropy = nn.functional.cross_entropy
            loss = cross_entropy(start, start_positions) + cross_entropy(end, end_positions)
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start, end_logits=end)


class PointerModel:
    def __init__(self, size: int = 8) -> None:
        self.size = size

    def load(self, texts, preprocess):
        tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
        pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)
        return PointerForQuestionAnswering(len(fast), self.size), fast


class Pairs(PointerModel):
    def load(self, task, texts, labels):
        return super().load(texts, None)


class Lengths:
    """Mean length of the answers, at most k.

    Args:
        k: Largest length that counts.
    """

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, answered):
        lengths = [min(len(one["prediction_text"]), self.k) for one in answered.predictions]
        return {"f1": sum(lengths) / len(lengths), "questions": len(lengths)}


class Scaled(MRCTrainer):
    """Reports a multiple of the loss."""

    def __init__(self, *args, factor: float = 2.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = factor

    def training_step(self, model, inputs, num_items_in_batch=None):
        return self.factor * super().training_step(model, inputs, num_items_in_batch)
'''

# The same for the tasks.
TASK_PACKAGE = """
import towns
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from portico.tasks.classification import TextClassification


class Shouting(TextClassification):
    def texts(self, record):
        return [text.upper() for text in super().texts(record)]


class Weather:
    def __init__(self, size: int = 6) -> None:
        self.size = size

    def load(self, task, split):
        return [{"text": f"day {n}", "label": "rain" if n % 2 else "sun"} for n in range(self.size)]


class Bag(nn.Module):
    def __init__(self, vocab_size, num_labels):
        super().__init__()
        self.scores = nn.EmbeddingBag(vocab_size, num_labels)

    def forward(self, input_ids, labels=None):
        logits = self.scores(input_ids)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class BagModel:
    def load(self, task, texts, labels):
        _, tokenizer = towns.PointerModel().load(texts, None)
        assert "DAY" in tokenizer.get_vocab()
        return Bag(len(tokenizer), len(labels)), tokenizer


class NoModel:
    def load(self, task, texts, labels):
        return "bert-base-uncased"


class Spread:
    def __call__(self, prediction):
        assert prediction.predictions.shape == (6, 2)
        return {"spread": prediction.predictions.max() - prediction.predictions.min()}
"""

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def train(tmp_path, monkeypatch, command_line):
    """Return a function that runs the command line next to the package `towns`, and returns code and results."""
    (tmp_path / "towns.py").write_text(PACKAGE, encoding="utf-8")
    (tmp_path / "days.py").write_text(TASK_PACKAGE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def train(*overrides, shape=SHAPE, experiment="mrc"):
        code = command_line(f"+experiment={experiment}", *SMALL, *(f"model.{size}" for size in shape), *overrides)
        results = tmp_path / "run" / "all_results.json"
        return code, json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}

    return train


def test_a_metric(train, tmp_path, capsys):
    code, results = train("metric._target_=towns.Lengths", "metric.k=3", "objective.metric=eval_questions")
    assert code == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if line.startswith("│")]
    assert rows[:2] == [["questions", "32"], ["F1", f"{results['eval_f1']:.1f}"]]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<dt>questions</dt><dd>32" in page
    assert "<td>questions</td><td>32</td>" in page
    assert results["eval_questions"] == 32
    assert 0 <= results["eval_f1"] <= 3


def test_data(train, tmp_path):
    code, results = train("data._target_=towns.Towns", "data.size=5", *NO_SAMPLES, "preprocess.vocab_size=100")
    assert code == 0
    assert results["train_samples"] == results["eval_samples"] == 5
    predictions = json.loads((tmp_path / "run" / "eval_predictions.json").read_text(encoding="utf-8"))
    assert set(predictions) == {f"dev{number}" for number in range(5)}
    assert "train questions" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_a_model(train, tmp_path):
    code, results = train("model._target_=towns.PointerModel", "model.size=4", shape=())
    assert code == 0
    assert results["eval_total"] == 32
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert weights["scores.weight"].shape == (2, 4)


def test_a_trainer(train):
    _, plain = train()
    code, doubled = train("trainer._target_=towns.Scaled", "trainer.factor=2.0", "overwrite=true")
    assert code == 0
    assert doubled["train_loss"] > 1.9 * plain["train_loss"]


TASK = ["task._target_=days.Shouting", "data._target_=days.Weather", *NO_SAMPLES, "model._target_=days.BagModel"]


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        (["metric._target_=days.Spread"], "eval_spread"),
        (
            ["metric._target_=torchmetrics.classification.MulticlassF1Score", "metric.num_classes=2"],
            "eval_MulticlassF1Score",
        ),
    ],
)
def test_task_data_model_and_metric(train, tmp_path, capsys, metric, score):
    """A plain module as the model, which has no configuration."""
    code, results = train(*TASK, *metric, shape=(), experiment="text_classification")
    assert code == 0
    assert results["eval_samples"] == 6
    rows = [line for line in capsys.readouterr().out.lower().splitlines() if line.startswith("│")]
    assert score.removeprefix("eval_").lower() in rows[0]
    assert results[score] >= 0
    assert "DAY 0" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert load_file(tmp_path / "run" / "model.safetensors")["scores.weight"].shape[1] == 2


def test_a_model_of_a_task_that_is_none(train, capsys):
    code, _ = train(*TASK, "model._target_=days.NoModel", shape=(), experiment="text_classification")
    assert code == 1
    assert "`NoModel.load` returned bert-base-uncased; it has to return (model, tok" in capsys.readouterr().err


def test_a_module_that_cannot_generate(train, capsys):
    data = ["data._target_=days.Weather", *NO_SAMPLES, "task.source_column=text", "task.target_column=label"]
    code, _ = train(*data, "model._target_=towns.Pairs", shape=(), experiment="summarization")
    assert code == 1
    assert "PointerForQuestionAnswering has no `generate`; derive it from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["metric._target_=towns.Lenghts"],
            "`metric._target_=towns.Lenghts` cannot be imported (module 'towns' has no",
        ),
        (
            ["metric._target_=town.Lengths"],
            "cannot be imported (No module named 'town'); set it to the dotted path of a",
        ),
        (
            ["metric._target_=towns.Lengths"],
            "The group `metric` cannot build towns.Lengths (Lengths.__init__() missing",
        ),
        (["metric._target_=towns.Lengths", "metric.k=x"], "`metric.k=x` cannot be used; set it to an integer."),
        (
            ["metric._target_=towns.Lengths", "metric.j=3"],
            "'metric.j' is not a setting; the nearest valid names are: metric.k",
        ),
        (
            ["metric._target_=towns.Towns"],
            "`metric._target_=towns.Towns` has no method `__call__`, which portico.mrc.",
        ),
        (["data._target_=towns.Lengths"], "`data._target_=towns.Lengths` has no method `load`, which portico.mrc."),
        (["data._target_=towns.Towns"], "'data.max_eval_samples' is not a setting; those of data are: size."),
        (
            ["data._target_=towns.Broken", *NO_SAMPLES],
            "`Broken.load` returned 1; it has to return (train, valid",
        ),
        (
            ["trainer._target_=towns.PointerModel"],
            "`trainer._target_=towns.PointerModel` does not derive from portico.",
        ),
        (
            ["trainer._target_=towns.Scaled", "trainer.facto=2"],
            "'trainer.facto' is not a setting; the nearest valid n",
        ),
        (["model._target_=towns.PointerModel"], "'model.hidden_size' is not a setting"),
        (["_target_=towns.Towns"], "`_target_=towns.Towns` is not an experiment; set it to a class that derives from"),
    ],
)
def test_a_class_that_does_not_fit_is_refused_in_a_sentence(train, capsys, tmp_path, overrides, message):
    code, _ = train(*overrides)
    shown = capsys.readouterr().err.lstrip("\n")
    assert code == 1
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1, "not one paragraph"
    assert message in re.sub(r"\s+", " ", shown)
    assert not (tmp_path / "run").exists()
