"""The base class of the tasks. The scripts named in this package are the example scripts of transformers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from portico.arguments import TrainingArguments
from portico.compat.annotations import DataCollator
from portico.errors import InputError
from portico.trainer import Trainer

Tokenizer: TypeAlias = PreTrainedTokenizerBase
Record: TypeAlias = Mapping[str, Any]
Features: TypeAlias = Sequence[Mapping[str, Any]] | Dataset[Mapping[str, Any]]
Array: TypeAlias = npt.NDArray[Any]
Predictions: TypeAlias = Array | tuple[Array, ...]
"""Logits or generated tokens of an evaluation, the first of a tuple if the model has other outputs too."""

IGNORED = -100  # label of tokens that count neither in the loss nor in a score
LONGEST = 1024  # tokens of an input if neither a setting nor the tokenizer limits it
_READ_FOR_A_GUESS = 1000  # records

OutputT = TypeVar("OutputT", Array, Tensor)
ProcessorT = TypeVar("ProcessorT")


class Task(ABC, Generic[ProcessorT]):
    """One kind of example; a subclass is a dataclass whose fields are the keys of the group ``task``.

    The type argument says whether a tokenizer or an image processor prepares the examples.
    """

    model_class: ClassVar[Any]
    """Class of transformers that finds the class of the model, such as ``AutoModelForSequenceClassification``."""
    predictions_file: ClassVar[str] = "predictions.txt"
    """File that ``mode=predict`` writes, named as in the example script."""
    label_column: str | None = None
    lowercase: ClassVar[bool] = True
    """Whether a tokenizer trained from scratch folds case."""
    labels: Sequence[str] = ()
    """Names of the classes in the order of the model; the experiment sets them."""

    made: Callable[[Random], Record] | None = None
    """Static method that makes a record of the embedded data."""
    read: Callable[[Path], Iterable[Record]] | None = None
    """Static method that reads the records of a path; ``None`` reads JSON, CSV, TSV and text files."""

    @abstractmethod
    def texts(self, record: Record) -> Iterable[str]:
        """Return the strings of a record on which a tokenizer is trained."""

    def classes(self, records: Sequence[Record]) -> list[Any]:
        """Return the distinct labels, sorted; an empty list if the task has no classes."""
        if self.label_column is None:
            return []
        named = getattr(records, "names", {}).get(self.label_column)
        if named:
            return named
        found = [value for record in records for value in self._labels_in(record)]
        kinds = (str,) if found and isinstance(found[0], str) else (int, float)
        wrong = [value for value in found if type(value) not in kinds]
        if wrong:
            raise InputError(
                f"The label {str(wrong[0])[:60]!r} in '{self.label_column}' cannot be used; labels are all strings or "
                "all numbers. Correct the data, or set `task.label_column`."
            )
        return sorted(set(found))

    def _labels_in(self, record: Record) -> Sequence[Any]:
        return [value_of(record, str(self.label_column), "label_column")]

    def has_target(self, record: Record) -> bool:
        """Return whether a record says what a model should return.

        By default a record needs a label; -1 marks a missing label in some test sets.
        """
        if self.label_column is None:
            return True
        label = record.get(self.label_column)
        return label is not None and not (type(label) is int and label == -1)

    def remove_target(self, record: Record) -> Record:
        """Return a record without what a model should return for it."""
        return {key: value for key, value in record.items() if key != self.label_column}

    def label_id(self, value: object) -> int:
        """Return the number of a label."""
        ids = {name: number for number, name in enumerate(self.labels)}
        if str(value) not in ids:
            raise InputError(
                f"The label {value!r} is not one of the labels of the model: {', '.join(self.labels)}; correct the "
                "data, or train on data that has it."
            )
        return ids[str(value)]

    def adapt(self, args: TrainingArguments, model: PreTrainedModel, processor: ProcessorT) -> None:
        """Adapt training arguments, model or tokenizer to the settings of the task; by default do nothing."""

    @abstractmethod
    def features(self, records: Sequence[Record], processor: ProcessorT) -> Features:
        """Return model inputs, with labels for the records that have one."""

    def train_features(self, records: Sequence[Record], processor: ProcessorT) -> Features:
        """Return model inputs to train on; by default the result of :meth:`features`."""
        return self.features(records, processor)

    def build_features(
        self, records: Sequence[Record], processor: ProcessorT, limit: int | None, *, training: bool
    ) -> Features | None:
        """Return the features of the first ``limit`` records; ``None`` without records."""
        features = self.train_features if training else self.features
        return features(records[:limit], processor) if records else None

    drops_records_without_target: ClassVar[bool] = False
    """Whether to leave out records to train or to evaluate on that do not say what the model should return."""

    def is_usable(self, record: Record) -> bool:
        """Return whether to use a record; by default every record is used."""
        return True

    @abstractmethod
    def collator(self, args: TrainingArguments, model: PreTrainedModel, processor: ProcessorT) -> DataCollator:
        """Return the function that makes a batch of a list of features."""

    def preprocess_logits(self, logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the part of a batch's logits that an evaluation keeps; by default all of them."""
        return logits

    @abstractmethod
    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        """Return the metrics of an evaluation."""

    @property
    def score_names(self) -> Sequence[str]:
        """The names in :meth:`scores`, as far as they are known before an evaluation; by default none are."""
        return ()

    def further_scores(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return scores computed from the metrics of an evaluation; by default none."""
        return {}

    def answers(self, predictions: Predictions, records: Sequence[Record]) -> list[str]:
        """Return the prediction for each record as a line of text; an empty list if there is nothing to read."""
        return []

    def golds(self, records: Sequence[Record]) -> list[str]:
        """Return the lines that :meth:`answers` should return: by default the labels, ``""`` where one is missing."""
        return [str(record.get(self.label_column, "")) for record in records] if self.label_column else []

    def lines(self, answers: Sequence[str]) -> Sequence[str]:
        """Return the lines of the file of predictions."""
        return answers

    def predict(self, trainer: Trainer, records: Sequence[Record]) -> tuple[list[str], dict[str, float]]:
        """Return the answers for records, and the metrics if the records are labelled."""
        processor: Any = trainer.processing_class
        output = trainer.predict(self.features(records, processor), metric_key_prefix="predict")
        return self.answers(output.predictions, records), output.metrics or {}


def value_of(record: Record, column: str, key: str) -> Any:
    """Return a value of a record; an error for a missing column names the setting ``task.<key>``."""
    if column not in record:
        raise InputError(
            f"A record has no '{column}' but {', '.join(map(str, record)) or 'nothing'}; set `task.{key}` to one of "
            "its keys."
        )
    return record[column]


def refuse_missing_label(task: Task[Any], records: Sequence[Record], split: str) -> None:
    """Refuse records of which none has the key of the label; the message guesses which keys were meant."""
    column = task.label_column
    if column is None or any(column in record for record in records):
        return
    keys = [str(key) for key in records[0]]
    some = records[:_READ_FOR_A_GUESS]
    # A label has the fewest distinct values, but more than one, and a text is the longest.
    counts = {key: len({str(record.get(key)) for record in some}) for key in keys}
    label = min(keys, key=lambda key: (counts[key] == 1, counts[key]), default="")
    texts = [key for key in keys if key not in (label, "idx")]
    text = max(texts, key=lambda key: sum(len(str(record.get(key))) for record in some), default="")
    settings = {"task.label_column": label}
    if hasattr(task, "text_columns"):
        settings["task.text_columns"] = f"[{text}]"
    elif hasattr(task, "text_column"):
        settings["task.text_column"] = text
    raise InputError(
        f"The records for '{split}' have no '{column}'; they have {', '.join(keys) or 'nothing'}. Set "
        f"{' and '.join(f'`{name}`' for name in settings)} to these names, perhaps "
        f"{' '.join(f'{name}={value}' for name, value in settings.items())}."
    )


def config_of(model: nn.Module) -> Any:
    """Return the configuration of a model of transformers; ``None`` for a plain module, which has none."""
    return getattr(model, "config", None)


def multiple_of(args: TrainingArguments) -> int | None:
    """Return the number of which padded lengths are a multiple: half precision is faster with multiples of 8."""
    return 8 if args.fp16 else None


def rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the columns that a tokenizer returns for several texts as one dict for each text."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def first(outputs: OutputT | tuple[OutputT, ...]) -> OutputT:
    """Return the logits of a model, which may return a tuple of them and other outputs."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def best_class(predictions: Predictions) -> Array:
    """Return the class with the highest score, ``int64 [B]`` or ``[B, T]``, from logits ``[..., C]``."""
    return np.argmax(first(predictions), axis=-1)


def accuracy(predicted: Array, labels: Array) -> float:
    """Return the share of equal values in 0..1, in float64 as scikit-learn does; torchmetrics returns float32."""
    return float((predicted == labels).mean())


def label_array(prediction: EvalPrediction) -> Array:
    """Return the labels of an evaluation of a task, which has a single array of them."""
    labels: Any = prediction.label_ids
    return labels


def perplexity(loss: float) -> float:
    """Return ``exp(loss)``, infinity if that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
