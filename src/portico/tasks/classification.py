"""Classes of texts, of words, and of endings: as ``run_glue.py``, ``run_ner.py`` and ``run_swag.py`` do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torchmetrics.functional import matthews_corrcoef, pearson_corrcoef, spearman_corrcoef
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    default_data_collator,
)

from portico.cli.settings import setting
from portico.errors import InputError
from portico.tasks import corpus
from portico.tasks.task import Features, Record, Task, best_class, first, rows, value_of

IGNORED = -100  # label of what counts neither in the loss nor in a score
_LONGEST = 1024  # tokens, where neither setting nor tokenizer says less


def multiple_of(args: Any) -> int | None:
    """Return what lengths are padded to a multiple of, which half precision is faster with."""
    return 8 if args.fp16 else None


def _f1(predictions: Any, labels: Any) -> float:
    true_positives = np.sum((predictions == 1) & (labels == 1))
    return float(2 * true_positives / max(np.sum(predictions == 1) + np.sum(labels == 1), 1))


def _with_torch(function: Any) -> Any:
    return lambda predictions, labels: float(function(torch.tensor(predictions), torch.tensor(labels)))


def _matthews(predictions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    num_classes = int(max(predictions.max(), labels.max(), torch.tensor(1))) + 1
    return matthews_corrcoef(predictions, labels, "multiclass", num_classes=num_classes)


_OF_NUMBERS = ("mse", "pearson", "spearmanr")
_METRICS: Mapping[str, Any] = {
    "accuracy": lambda predictions, labels: float((predictions == labels).mean()),
    "f1": _f1,
    "matthews_correlation": _with_torch(_matthews),
    "mse": lambda predictions, labels: float(np.mean((labels - predictions) ** 2)),
    "pearson": _with_torch(lambda x, y: pearson_corrcoef(x.double(), y.double())),
    "spearmanr": _with_torch(lambda x, y: spearman_corrcoef(x.double(), y.double())),
}


@dataclass(kw_only=True)
class TextClassification(Task):
    """A class, or a number, for a text or a pair of texts."""

    model_class: ClassVar[Any] = AutoModelForSequenceClassification
    predictions_file: ClassVar[str] = "predict_results.txt"
    made = staticmethod(corpus.review)

    text_columns: list[str] | None = None
    """Keys of one text or two; null: sentence1 and sentence2, or else the first two beside label and idx."""
    label_column: str = "label"
    """Key of the class; decimal numbers are predicted as such."""
    max_seq_length: int = setting(128, least=1)
    """Longer inputs are cut to this many tokens."""
    pad_to_max_length: bool = True
    """Pad all inputs to that length, instead of to the longest of their batch."""
    metrics: list[str] | None = None
    """Of classes accuracy, f1 (of the second of two), matthews_correlation; of numbers mse, pearson, spearmanr."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.metrics or () if name not in _METRICS]
        if unknown:
            raise InputError(f"`task.metrics={self.metrics}` has {unknown[0]}; use any of {', '.join(_METRICS)}.")

    def adapt(self, args: Any, model: Any, processor: Any) -> None:
        what, fitting = f"{len(self.labels)} classes", [name for name in _METRICS if name not in _OF_NUMBERS]
        if self._is_regression:
            what, fitting = "numbers", list(_OF_NUMBERS)
        elif len(self.labels) > 2:
            fitting.remove("f1")
        if wrong := [name for name in self.metrics or () if name not in fitting]:
            raise InputError(
                f"`task.metrics={self.metrics}` has {wrong[0]}, which does not measure {what}; use any of "
                f"{', '.join(fitting)}."
            )

    def texts(self, record: Record) -> Iterable[str]:
        return [str(value_of(record, column, "text_columns")) for column in self._columns(record)]

    def _columns(self, record: Record) -> Sequence[str]:
        if self.text_columns is not None:
            return self.text_columns
        if "sentence1" in record and "sentence2" in record:
            return ["sentence1", "sentence2"]
        return [key for key in record if key not in (self.label_column, "idx")][:2]

    def classes(self, records: Sequence[Record]) -> list[Any]:
        found = super().classes(records)
        if any(isinstance(value, float) for value in found):
            return ["LABEL_0"]  # one "class" is a number to be predicted
        if len(found) == 1:
            raise InputError(
                f"All records to train on have the label {found[0]!r}; there have to be two or more classes. Correct "
                "the data, or set `task.label_column`."
            )
        return found

    @property
    def _is_regression(self) -> bool:
        return len(self.labels) == 1

    def features(self, records: Sequence[Record], processor: Any) -> Features:
        columns = zip(*map(self.texts, records), strict=True)
        length = min(self.max_seq_length, processor.model_max_length)
        padding = "max_length" if self.pad_to_max_length else False
        encoded = processor(*map(list, columns), padding=padding, max_length=length, truncation=True)
        number = float if self._is_regression else self.label_id
        labels = [
            {"label": number(record[self.label_column])} if self.label_column in record else {} for record in records
        ]
        return [{**row, **label} for row, label in zip(rows(encoded), labels, strict=True)]

    def collator(self, args: Any, model: Any, processor: Any) -> Any:
        if self.pad_to_max_length:
            return default_data_collator
        return DataCollatorWithPadding(processor, pad_to_multiple_of=multiple_of(args))

    def _predicted(self, predictions: Any) -> Any:
        return np.squeeze(first(predictions), axis=-1) if self._is_regression else best_class(predictions)

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        names = self.metrics or ["mse" if self._is_regression else "accuracy"]
        predicted = self._predicted(prediction.predictions)
        found = {name: _METRICS[name](predicted, prediction.label_ids) for name in names}
        return {**found, "combined_score": float(np.mean(list(found.values())))} if len(found) > 1 else found

    def answers(self, predictions: Any, records: Sequence[Record]) -> list[str]:
        predicted = self._predicted(predictions)
        return [f"{one:3.3f}" if self._is_regression else self.labels[one] for one in predicted]

    def golds(self, records: Sequence[Record]) -> list[str]:
        return [str(record.get(self.label_column, "")) for record in records]

    def lines(self, answers: Sequence[str]) -> Sequence[str]:
        return ["index\tprediction", *(f"{number}\t{answer}" for number, answer in enumerate(answers))]


@dataclass(kw_only=True)
class TokenClassification(Task):
    """A tag for each word, such as the names in a sentence."""

    model_class: ClassVar[Any] = AutoModelForTokenClassification
    lowercase: ClassVar[bool] = False  # names begin with a capital
    made = staticmethod(corpus.report)

    text_column: str = "tokens"
    """Key of the words, a list."""
    label_column: str = "ner_tags"
    """Key of their tags, a list as long; names in BIO form are scored as wholes."""
    max_seq_length: int | None = setting(None, least=1)
    """Longer sentences are cut to this many tokens; null: what the tokenizer allows."""
    pad_to_max_length: bool = False
    """Pad all sentences to that length, instead of to the longest of their batch."""
    label_all_tokens: bool = False
    """Label every piece of a word, instead of only its first."""

    def texts(self, record: Record) -> Iterable[str]:
        return [" ".join(self._words(record))]

    def _words(self, record: Record) -> list[str]:
        return list(map(str, value_of(record, self.text_column, "text_column")))

    def _labels_in(self, record: Record) -> Sequence[Any]:
        return value_of(record, self.label_column, "label_column")

    def adapt(self, args: Any, model: Any, processor: Any) -> None:
        self._tokenizer = processor

    def _encoded(self, records: Sequence[Record]) -> Any:
        return self._tokenizer(
            [self._words(record) for record in records],
            padding="max_length" if self.pad_to_max_length else False,
            truncation=True,
            max_length=self.max_seq_length,
            is_split_into_words=True,
        )

    def features(self, records: Sequence[Record], processor: Any) -> Features:
        encoded = self._encoded(records)
        made = rows(encoded)
        for number, (row, record) in enumerate(zip(made, records, strict=True)):
            if self.label_column in record:
                tags, words = [self.label_id(tag) for tag in record[self.label_column]], self._words(record)
                if len(tags) != len(words):
                    raise InputError(
                        f"A record has {len(words)} words in '{self.text_column}' and {len(tags)} tags in "
                        f"'{self.label_column}': {' '.join(words)[:100]}; give each word one tag."
                    )
                row["labels"] = self._aligned(tags, encoded.word_ids(number))
        return made

    def _aligned(self, tags: Sequence[int], words: Sequence[int | None]) -> list[int]:
        """Return a label for each token from those of the words."""
        aligned = []
        for previous, word in pairwise([None, *words]):
            if word is None:
                aligned.append(IGNORED)
            elif word != previous:
                aligned.append(tags[word])
            else:
                aligned.append(self._inside(tags[word]) if self.label_all_tokens else IGNORED)
        return aligned

    def _inside(self, tag: int) -> int:
        inside = "I-" + self.labels[tag].removeprefix("B-")
        return self.labels.index(inside) if inside in self.labels else tag

    def collator(self, args: Any, model: Any, processor: Any) -> Any:
        return DataCollatorForTokenClassification(processor, pad_to_multiple_of=multiple_of(args))

    def _tags(self, classes: Any, labels: Any) -> list[list[str]]:
        """Return the names of the classes of those tokens that have a label."""
        return [
            [self.labels[one] for one, label in zip(row, kept, strict=True) if label != IGNORED]
            for row, kept in zip(classes, labels, strict=True)
        ]

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        labels: Any = prediction.label_ids
        predicted, golds = self._tags(best_class(prediction.predictions), labels), self._tags(labels, labels)
        return entity_scores(predicted, golds)

    def answers(self, predictions: Any, records: Sequence[Record]) -> list[str]:
        encoded = self._encoded(records)
        lines = []
        for number, classes in enumerate(best_class(predictions)):
            pairs = pairwise([None, *encoded.word_ids(number)])
            firsts = [place for place, (last, word) in enumerate(pairs) if word is not None and word != last]
            lines.append(" ".join(self.labels[classes[place]] for place in firsts))
        return lines

    def golds(self, records: Sequence[Record]) -> list[str]:
        return [" ".join(map(str, record.get(self.label_column, ()))) for record in records]


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield kind, first and last word of each name in the tags of a sentence, as ``conlleval`` finds them.

    A name also begins at an ``I-`` tag that continues nothing, or another kind; ``E-`` and ``S-`` end one.
    """
    start, open_kind, last_prefix = 0, None, "O"
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-") if "-" in tag else (tag[:1], "", tag[1:].lstrip("-") or "_")
        goes_on = prefix in "IE" and last_prefix in "BI" and kind == open_kind
        if open_kind is not None and not goes_on:
            yield open_kind, start, place - 1
            open_kind = None
        if prefix != "O" and not goes_on:
            start, open_kind = place, kind
        last_prefix = prefix


def entity_scores(predicted: Sequence[Sequence[str]], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of whole names, and the accuracy of tags, all in 0..1."""
    found, true = (
        {(number, *entity) for number, tags in enumerate(sentences) for entity in entities(tags)}
        for sentences in (predicted, golds)
    )
    precision = len(found & true) / len(found) if found else 0.0
    recall = len(found & true) / len(true) if true else 0.0
    pairs = [pair for tags in zip(predicted, golds, strict=True) for pair in zip(*tags, strict=True)]
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if precision + recall else 0.0,
        "accuracy": sum(one == other for one, other in pairs) / len(pairs),
    }


@dataclass(kw_only=True)
class MultipleChoice(Task):
    """Which of several endings fits a beginning, in the form of SWAG."""

    model_class: ClassVar[Any] = AutoModelForMultipleChoice
    made = staticmethod(corpus.story)

    context_column: str = "sent1"
    """Key of what comes first."""
    question_column: str = "sent2"
    """Key of how the second sentence begins."""
    ending_columns: list[str] = field(default_factory=lambda: [f"ending{number}" for number in range(4)])
    """Keys of the endings."""
    label_column: str = "label"
    """Key of the number of the right ending, from 0."""
    max_seq_length: int | None = setting(None, least=1)
    """Longer inputs are cut to this many tokens; null: what the tokenizer allows, at most 1024."""
    pad_to_max_length: bool = False
    """Pad all inputs to that length, instead of to the longest of their batch."""

    def texts(self, record: Record) -> Iterable[str]:
        keys = {"context_column": [self.context_column], "question_column": [self.question_column]}
        keys["ending_columns"] = self.ending_columns
        return [str(value_of(record, column, key)) for key, columns in keys.items() for column in columns]

    def classes(self, records: Sequence[Record]) -> list[Any]:
        return []  # every ending has one score

    def features(self, records: Sequence[Record], processor: Any) -> Features:
        contexts, endings = [], []
        for record in records:
            context, question, *parts = self.texts(record)
            contexts += [context] * len(parts)
            endings += [f"{question} {part}" for part in parts]
        encoded = processor(
            contexts,
            endings,
            truncation=True,
            max_length=min(self.max_seq_length or _LONGEST, processor.model_max_length),
            padding="max_length" if self.pad_to_max_length else False,
        )
        size = len(self.ending_columns)
        grouped = {
            name: [values[at : at + size] for at in range(0, len(values), size)] for name, values in encoded.items()
        }
        labels = [{"label": self._right(record)} if self.label_column in record else {} for record in records]
        return [{**row, **label} for row, label in zip(rows(grouped), labels, strict=True)]

    def _right(self, record: Record) -> int:
        """Return the number of the right ending; datasets of the hub name it by its digits."""
        label, count = record[self.label_column], len(self.ending_columns)
        if str(label) not in map(str, range(count)):
            raise InputError(
                f"The label {label!r} in '{self.label_column}' is not the number of an ending, 0 to {count - 1}; "
                "correct the data, or set `task.label_column`."
            )
        return int(label)

    def collator(self, args: Any, model: Any, processor: Any) -> Any:
        if self.pad_to_max_length:
            return default_data_collator
        return DataCollatorForMultipleChoice(processor, pad_to_multiple_of=multiple_of(args), return_tensors="pt")

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        right: Any = best_class(prediction.predictions) == prediction.label_ids
        return {"accuracy": right.astype(np.float32).mean().item()}

    def answers(self, predictions: Any, records: Sequence[Record]) -> list[str]:
        chosen = best_class(predictions)
        return [str(record[self.ending_columns[one]]) for one, record in zip(chosen, records, strict=True)]

    def golds(self, records: Sequence[Record]) -> list[str]:
        return [str(record[self.ending_columns[self._right(record)]]) for record in records]
