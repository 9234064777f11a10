"""What distinguishes a task from others; the scripts named here are the examples of transformers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
from transformers import EvalPrediction

from portico.errors import InputError

Record = Mapping[str, Any]
Features = Sequence[Mapping[str, Any]]


class Task(ABC):
    """What is special about one kind of example; a subclass is a dataclass, the group ``task``."""

    model_class: ClassVar[Any]
    """Class of transformers that finds the model's class, such as ``AutoModelForSequenceClassification``."""
    predictions_file: ClassVar[str] = "predictions.txt"
    """File that ``mode=predict`` writes, named as transformers' example names it."""
    label_column: str | None = None
    lowercase: ClassVar[bool] = True
    """Whether a tokenizer trained here folds case."""
    labels: Sequence[str] = ()
    """Names of the classes in the order of the model's; the experiment sets it."""

    made: Callable[[Random], Record] | None = None
    """Makes a record of the embedded data; a static method, like the next."""
    read: Callable[[Path], Iterable[Record]] | None = None
    """Reads the records of a path; ``None``: files of JSON, CSV, TSV or text."""

    @abstractmethod
    def texts(self, record: Record) -> Iterable[str]:
        """Return the strings of a record that a new tokenizer learns from."""

    def classes(self, records: Sequence[Record]) -> list[Any]:
        """Return the values of the labels, sorted; none if the task has no classes."""
        if self.label_column is None:
            return []
        named = getattr(records, "names", {}).get(self.label_column)
        if named:
            return named
        found = [value for record in records for value in self._labels_in(record)]
        kinds = (str,) if found and isinstance(found[0], str) else (int, float)
        wrong = [one for one in found if type(one) not in kinds]
        if wrong:
            raise InputError(
                f"The label {str(wrong[0])[:60]!r} in '{self.label_column}' cannot be used; labels are all strings or "
                "all numbers. Correct the data, or set `task.label_column`."
            )
        return sorted(set(found))

    def _labels_in(self, record: Record) -> Sequence[Any]:
        return [value_of(record, str(self.label_column), "label_column")]

    def has_target(self, record: Record) -> bool:
        """Return whether it is known what a model should return for a record.

        By default whether there is a label; some test sets have -1 for want of one.
        """
        if self.label_column is None:
            return True
        label = record.get(self.label_column)
        return label is not None and not (type(label) is int and label == -1)

    def without_target(self, record: Record) -> Record:
        """Return a record without what a model should return for it."""
        return {key: value for key, value in record.items() if key != self.label_column}

    def label_id(self, value: Any) -> int:
        """Return the number of a label."""
        try:
            return self._ids[str(value)]
        except KeyError:
            raise InputError(
                f"The label {value!r} is not one of those that the model knows: {', '.join(self.labels)}; correct the "
                "data, or train on data that has it."
            ) from None

    @property
    def _ids(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.labels)}

    def adapt(self, args: Any, model: Any, processor: Any) -> None:  # noqa: B027 -- most tasks have nothing to adjust
        """Adjust training arguments, model or tokenizer to the settings of the task; by default nothing."""

    @abstractmethod
    def features(self, records: Sequence[Record], processor: Any) -> Features:
        """Return model inputs with their labels, where the records have such."""

    def train_features(self, records: Sequence[Record], processor: Any) -> Features:
        """Return model inputs to train on, by default like others."""
        return self.features(records, processor)

    def limited_features(
        self, records: Sequence[Record], processor: Any, limit: int | None, *, training: bool
    ) -> Features | None:
        """Return the first features of records; none if there are no records."""
        features = self.train_features if training else self.features
        return features(records[:limit], processor) if records else None

    def is_usable(self, record: Record) -> bool:
        """Return whether a record can be used; others are left out. By default all can."""
        return True

    @abstractmethod
    def collator(self, args: Any, model: Any, processor: Any) -> Any:
        """Return what makes a batch of features."""

    def preprocess_logits(self, logits: Any, labels: Any) -> Any:
        """Return what an evaluation keeps of the logits of a batch, by default all."""
        return logits

    @abstractmethod
    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        """Return the metrics of an evaluation."""

    def further_scores(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return scores that follow from the metrics of an evaluation; by default none."""
        return {}

    def answers(self, predictions: Any, records: Sequence[Record]) -> list[str]:
        """Return one line for each record: what the model predicts; none if there is nothing to read."""
        return []

    def golds(self, records: Sequence[Record]) -> list[str]:
        """Return what :meth:`answers` should be, as far as it is known."""
        return []

    def lines(self, answers: Sequence[str]) -> Sequence[str]:
        """Return the lines of the file of predictions."""
        return answers

    def predict(self, trainer: Any, records: Sequence[Record]) -> tuple[list[str], dict[str, float]]:
        """Return the answers for records and the metrics, which need labels."""
        output = trainer.predict(self.features(records, trainer.processing_class), metric_key_prefix="predict")
        return self.answers(output.predictions, records), output.metrics


def value_of(record: Record, column: str, key: str) -> Any:
    """Return a value of a record; refuse a record without it, naming the setting ``task.<key>``."""
    if column not in record:
        raise InputError(
            f"A record has no '{column}' but {', '.join(map(str, record)) or 'nothing'}; set `task.{key}` to one of "
            "its keys."
        )
    return record[column]


def rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return what a tokenizer gives for several texts as one dict a text."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def best_class(predictions: Any) -> Any:
    """Return the classes with the highest scores; models may return more than their logits."""
    return np.argmax(first(predictions), axis=-1)


def first(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, tuple) else outputs


def perplexity(loss: float) -> float:
    """Return ``exp(loss)``, infinite where that is too large for a number."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
