"""Models and datasets that are no library's own: what they return, how they are wrapped, what they are made of."""

from collections import OrderedDict, namedtuple

import datasets
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset
from transformers import BatchEncoding
from transformers.modeling_outputs import SequenceClassifierOutput

from models import ToyDataset, tiny_bert
from parity.peers import compare, untimed

EVALUATED = {"eval_strategy": "steps", "eval_steps": 3, "gradient_accumulation_steps": 2, "max_steps": 5}


class Bag(nn.Module):
    """Classifies the mean of its words' embeddings."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids, labels=None):
        logits = self.logits(input_ids)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    def logits(self, input_ids):
        return self.head(self.embedding(input_ids).mean(1))


def predictions(trainer):
    output = trainer.predict(trainer.eval_dataset)
    return {"predictions": output.predictions, "labels": output.label_ids, "metrics": untimed(output.metrics)}


Named = namedtuple("Named", "loss logits")
RETURNS = {
    "tuple": lambda loss, logits: (loss, logits),
    "list": lambda loss, logits: [loss, logits],
    "namedtuple": Named,
    "ordered_dict": lambda loss, logits: OrderedDict(loss=loss, logits=logits, doubled=logits * 2),
    "model_output": lambda loss, logits: SequenceClassifierOutput(loss=loss, logits=logits),
    "nested": lambda loss, logits: (loss, (logits, logits[:, :2]), logits),
    "a_scalar_beside": lambda loss, logits: {"loss": loss, "logits": logits, "scale": logits.mean()},
    "bfloat16": lambda loss, logits: {"loss": loss, "logits": logits.bfloat16()},
    "the_loss_alone": lambda loss, logits: (loss,),
}


@pytest.mark.parametrize("kind", RETURNS)
def test_same_numbers_of_a_model_that_returns(kind, tmp_path):
    class Returning(Bag):
        def forward(self, input_ids, labels=None):
            return RETURNS[kind](**super().forward(input_ids, labels))

    compare(tmp_path, make_model=Returning, after=predictions, **EVALUATED)


class Renamed(Dataset):
    """The toy sentences under other names."""

    def __init__(self, size, *names):
        self.data, self.names = ToyDataset(size), names

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {name: self.data[index]["input_ids" if name == "input_ids" else "labels"] for name in self.names}


@pytest.mark.parametrize("label_names", [None, ["targets"]])
def test_same_numbers_with_renamed_labels(label_names, tmp_path):
    class Targeted(Bag):
        def forward(self, input_ids, targets):
            return super().forward(input_ids, targets)

    sets = {
        "train_dataset": lambda: Renamed(29, "input_ids", "targets"),
        "eval_dataset": lambda: Renamed(9, "input_ids", "targets"),
    }
    compare(tmp_path, make_model=Targeted, after=predictions, label_names=label_names, **sets, **EVALUATED)


class Inside(nn.Module):
    """A model in a part called ``module``, as wrappers for several devices have it, but with a forward of its own."""

    def __init__(self):
        super().__init__()
        self.module = tiny_bert()

    def forward(self, **inputs):
        return self.module(**inputs)


@pytest.mark.parametrize("wrap", [Inside, lambda: nn.DataParallel(tiny_bert())], ids=["own", "data_parallel"])
def test_same_numbers_and_weights_of_a_wrapped_model(wrap, tmp_path):
    def saved(trainer):
        trainer.save_model(str(tmp_path / "saved"))
        return {**predictions(trainer), "weights": (tmp_path / "saved" / "model.safetensors").read_bytes()}

    compare(tmp_path, make_model=wrap, after=saved, remove_unused_columns=False, **EVALUATED)


def frozen():
    model = tiny_bert()
    model.bert.requires_grad_(False)
    return model


def without_settings():
    model = Bag()
    model.config = None
    return model


MADE = {"frozen": frozen, "double": lambda: Bag().double(), "without_config": without_settings}


@pytest.mark.parametrize("name", MADE)
def test_same_numbers_of_a_model_that_is(name, tmp_path):
    compare(tmp_path, make_model=MADE[name], after=predictions, save_strategy="steps", save_steps=2, **EVALUATED)


def table(size=29, **columns):
    data = ToyDataset(size)
    rows = {"input_ids": data.tokens.tolist(), "labels": data.labels.tolist(), "text": ["w"] * size, **columns}
    return datasets.Dataset.from_dict(rows)


def first_words(rows):
    return {"input_ids": [words[:3] for words in rows["input_ids"]], "labels": rows["labels"]}


class Encoded(Renamed):
    """The toy sentences as a tokenizer gives them."""

    def __getitem__(self, index):
        return BatchEncoding({name: value.tolist() for name, value in super().__getitem__(index).items()})


SETS = {
    "subset": lambda: Subset(ToyDataset(), range(3, 20)),
    "concatenation": lambda: ConcatDataset([ToyDataset(7), ToyDataset(8)]),
    "list": lambda: [ToyDataset()[index] for index in range(20)],
    "encodings": lambda: Encoded(20, "input_ids", "labels"),
    "label_column": lambda: Renamed(20, "input_ids", "label"),
    "table": table,
    "table_of_tensors": lambda: table().with_format("torch"),
    "table_of_arrays": lambda: table().with_format("numpy"),
    "table_with_transform": lambda: table().select_columns(["input_ids", "labels"]).with_transform(first_words),
    "stream": lambda: table().to_iterable_dataset(),
    "shuffled_stream": lambda: table().to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=7),
    "mapped_stream": lambda: table().to_iterable_dataset().map(lambda row: {"input_ids": row["input_ids"][::-1]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_same_numbers_on_a(name, tmp_path):
    data = {"train_dataset": SETS[name], "eval_dataset": SETS[name]}
    compare(tmp_path, make_model=Bag, after=predictions, **data, **EVALUATED)


def test_same_history_of_empty_evaluation(tmp_path):
    compare(tmp_path, make_model=Bag, eval_dataset=lambda: ToyDataset(0), **EVALUATED)


METRICS = {
    "numpy": lambda prediction: {"a": np.float32(1.5), "b": np.array(2.5), "c": np.int64(3)},
    "tensor": lambda prediction: {"a": torch.tensor(1.5)},
    "text": lambda prediction: {"a": "text", "b": None},
    "nested": lambda prediction: {"a": {"x": np.float32(1)}, "b": [np.float32(1), 2]},
    "prefixed": lambda prediction: {"eval_a": 1.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", METRICS)
def test_same_history_with_metrics_that_are(kind, tmp_path):
    compare(tmp_path, make_model=Bag, trainer_options={"compute_metrics": METRICS[kind]}, **EVALUATED)
