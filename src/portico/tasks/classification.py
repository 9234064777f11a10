"""Classification of texts, words and endings, as in ``run_glue.py``, ``run_ner.py`` and ``run_swag.py``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    PreTrainedModel,
    default_data_collator,
)

from portico.arguments import TrainingArguments
from portico.compat.annotations import DataCollator
from portico.errors import InputError
from portico.experiments import toy_records
from portico.experiments.settings import setting
from portico.tasks.task import (
    IGNORED,
    LONGEST,
    Array,
    Features,
    Predictions,
    Record,
    Task,
    Tokenizer,
    accuracy,
    best_class,
    first,
    label_array,
    multiple_of,
    rows,
    value_of,
)
from portico.trust.names import data_only


def _f1(predicted: Array, labels: Array) -> float:
    num_shared = int(np.sum((predicted == 1) & (labels == 1)))
    return 2 * num_shared / max(int(np.sum(predicted == 1) + np.sum(labels == 1)), 1)


def _matthews(predicted: Array, labels: Array) -> float:
    num_classes = int(max(predicted.max(), labels.max(), 1)) + 1
    tensors = torch.tensor(predicted), torch.tensor(labels)
    return float(matthews_corrcoef(*tensors, "multiclass", num_classes=num_classes))


def _correlation(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[Array, Array], float]:
    return lambda predicted, labels: float(function(torch.tensor(predicted).double(), torch.tensor(labels).double()))


# The scripts score with scikit-learn, in float64. torchmetrics computes accuracy, F1 and the squared error in float32,
# and the last digits differ in most evaluations.
_CLASS_METRICS: Mapping[str, Callable[[Array, Array], float]] = {
    "accuracy": accuracy,
    "f1": _f1,
    "matthews_correlation": _matthews,
}
_NUMBER_METRICS: Mapping[str, Callable[[Array, Array], float]] = {
    "mse": lambda predicted, labels: float(np.mean((labels - predicted) ** 2)),
    "pearson": _correlation(pearson_corrcoef),
    "spearmanr": _correlation(spearman_corrcoef),
}
_METRICS = {**_CLASS_METRICS, **_NUMBER_METRICS}


@data_only
@dataclass(kw_only=True)
class TextClassification(Task[Tokenizer]):
    """Predicts a class, or a number, for a text or a pair of texts."""

    model_class: ClassVar[Any] = AutoModelForSequenceClassification
    predictions_file: ClassVar[str] = "predict_results.txt"
    made = staticmethod(toy_records.review)

    text_columns: list[str] | None = None
    """Keys of one or two texts; null: sentence1 and sentence2, or else the first two other than label and idx."""
    label_column: str = "label"
    """Key of the class; labels with a decimal point are predicted as numbers."""
    max_seq_length: int = setting(128, least=1)
    """Longer inputs are cut to this many tokens."""
    pad_to_max_length: bool = True
    """Pad all inputs to that length, instead of to the longest of their batch."""
    metrics: list[str] | None = None
    """For classes: accuracy, f1 (of the second of two), matthews_correlation; for numbers: mse, pearson, spearmanr."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.metrics or () if name not in _METRICS]
        if unknown:
            raise InputError(f"`task.metrics={self.metrics}` has {unknown[0]}; use any of {', '.join(_METRICS)}.")
        if self.text_columns is not None and len(self.text_columns) not in (1, 2):
            raise InputError(
                f"`task.text_columns={self.text_columns}` cannot be used; set it to one or two keys of a record."
            )

    def adapt(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> None:
        measured = "numbers" if self._is_regression else f"{len(self.labels)} classes"
        fitting = list(_NUMBER_METRICS if self._is_regression else _CLASS_METRICS)
        if len(self.labels) > 2:
            fitting.remove("f1")
        if wrong := [name for name in self.metrics or () if name not in fitting]:
            raise InputError(
                f"`task.metrics={self.metrics}` has {wrong[0]}, which does not measure {measured}; use any of "
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
            return ["LABEL_0"]  # transformers' name of the only output of a regression
        if len(found) == 1:
            raise InputError(
                f"All records to train on have the label {found[0]!r}; there have to be two or more classes. Correct "
                "the data, or set `task.label_column`."
            )
        return found

    @property
    def _is_regression(self) -> bool:
        return len(self.labels) == 1

    def features(self, records: Sequence[Record], processor: Tokenizer) -> Features:
        columns = zip(*map(self.texts, records), strict=True)
        length = min(self.max_seq_length, processor.model_max_length)
        padding = "max_length" if self.pad_to_max_length else False
        encoded = processor(*map(list, columns), padding=padding, max_length=length, truncation=True)
        number = float if self._is_regression else self.label_id
        labels = [
            {"label": number(record[self.label_column])} if self.label_column in record else {} for record in records
        ]
        return [{**row, **label} for row, label in zip(rows(encoded), labels, strict=True)]

    def collator(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> DataCollator:
        if self.pad_to_max_length:
            return default_data_collator
        return DataCollatorWithPadding(processor, pad_to_multiple_of=multiple_of(args))

    def _decode_predictions(self, predictions: Predictions) -> Array:
        return np.squeeze(first(predictions), axis=-1) if self._is_regression else best_class(predictions)

    @property
    def score_names(self) -> Sequence[str]:
        names = self.metrics or ["mse" if self._is_regression else "accuracy"]
        return [*names, "combined_score"] if len(set(names)) > 1 else names

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        names = [name for name in self.score_names if name in _METRICS]
        predicted, labels = self._decode_predictions(prediction.predictions), label_array(prediction)
        found = {name: _METRICS[name](predicted, labels) for name in names}
        return {**found, "combined_score": float(np.mean(list(found.values())))} if len(found) > 1 else found

    def answers(self, predictions: Predictions, records: Sequence[Record]) -> list[str]:
        predicted = self._decode_predictions(predictions)
        return [f"{prediction:3.3f}" if self._is_regression else self.labels[prediction] for prediction in predicted]

    def lines(self, answers: Sequence[str]) -> Sequence[str]:
        return ["index\tprediction", *(f"{number}\t{answer}" for number, answer in enumerate(answers))]


@data_only
@dataclass(kw_only=True)
class TokenClassification(Task[Tokenizer]):
    """Predicts a tag for each word, such as the names in a sentence."""

    model_class: ClassVar[Any] = AutoModelForTokenClassification
    lowercase: ClassVar[bool] = False  # names begin with a capital
    score_names: ClassVar[Sequence[str]] = ("precision", "recall", "f1", "accuracy")
    made = staticmethod(toy_records.report)

    text_column: str = "tokens"
    """Key of the list of words."""
    label_column: str = "ner_tags"
    """Key of the list of tags, one for each word; in BIO form, names are scored as a whole."""
    max_seq_length: int | None = setting(None, least=1)
    """Longer sentences are cut to this many tokens; null: the limit of the tokenizer."""
    pad_to_max_length: bool = False
    """Pad all sentences to that length, instead of to the longest of their batch."""
    label_all_tokens: bool = False
    """Label every token of a word, instead of only the first."""

    def texts(self, record: Record) -> Iterable[str]:
        return [" ".join(self._words(record))]

    def _words(self, record: Record) -> list[str]:
        return list(map(str, value_of(record, self.text_column, "text_column")))

    def _labels_in(self, record: Record) -> Sequence[Any]:
        return value_of(record, self.label_column, "label_column")

    def adapt(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> None:
        self._tokenizer = processor

    def _encode(self, records: Sequence[Record]) -> Any:
        return self._tokenizer(
            [self._words(record) for record in records],
            padding="max_length" if self.pad_to_max_length else False,
            truncation=True,
            max_length=self.max_seq_length,
            is_split_into_words=True,
        )

    def features(self, records: Sequence[Record], processor: Tokenizer) -> Features:
        encoded = self._encode(records)
        made = rows(encoded)
        for number, (row, record) in enumerate(zip(made, records, strict=True)):
            if self.label_column in record:
                tags = [self.label_id(tag) for tag in record[self.label_column]]
                words = self._words(record)
                if len(tags) != len(words):
                    raise InputError(
                        f"A record has {len(words)} words in '{self.text_column}' and {len(tags)} tags in "
                        f"'{self.label_column}': {' '.join(words)[:100]}; give each word one tag."
                    )
                row["labels"] = self._align_labels(tags, encoded.word_ids(number))
        return made

    def _align_labels(self, tags: Sequence[int], words: Sequence[int | None]) -> list[int]:
        """Return the label of each token, given the tags of the words and the word that each token belongs to."""
        aligned = []
        for previous, word in pairwise([None, *words]):
            if word is None:
                aligned.append(IGNORED)
            elif word != previous:
                aligned.append(tags[word])
            else:
                aligned.append(self._find_inside_tag(tags[word]) if self.label_all_tokens else IGNORED)
        return aligned

    def _find_inside_tag(self, tag: int) -> int:
        inside = "I-" + self.labels[tag].removeprefix("B-")
        return self.labels.index(inside) if inside in self.labels else tag

    def collator(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> DataCollator:
        return DataCollatorForTokenClassification(processor, pad_to_multiple_of=multiple_of(args))

    def _tags(self, classes: Array, labels: Array) -> list[list[str]]:
        """Return the names of the predicted classes, leaving out tokens without a label."""
        return [
            [self.labels[tag] for tag, label in zip(row, kept, strict=True) if label != IGNORED]
            for row, kept in zip(classes, labels, strict=True)
        ]

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        labels = label_array(prediction)
        return entity_scores(self._tags(best_class(prediction.predictions), labels), self._tags(labels, labels))

    def answers(self, predictions: Predictions, records: Sequence[Record]) -> list[str]:
        encoded = self._encode(records)
        lines = []
        for number, classes in enumerate(best_class(predictions)):
            pairs = pairwise([None, *encoded.word_ids(number)])
            firsts = [place for place, (last, word) in enumerate(pairs) if word is not None and word != last]
            lines.append(" ".join(self.labels[classes[place]] for place in firsts))
        return lines

    def golds(self, records: Sequence[Record]) -> list[str]:
        return [" ".join(map(str, record.get(self.label_column, ()))) for record in records]


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the kind, the first and the last word of each name in a tagged sentence, by the rules of ``conlleval``.

    An ``I-`` tag that does not continue a name of the same kind begins one; ``E-`` and ``S-`` tags end a name.
    """
    start = 0
    open_kind = None
    last_prefix = "O"
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-") if "-" in tag else (tag[:1], "", tag[1:].lstrip("-") or "_")
        continues = prefix in "IE" and last_prefix in "BI" and kind == open_kind
        if open_kind is not None and not continues:
            yield open_kind, start, place - 1
            open_kind = None
        if prefix != "O" and not continues:
            start, open_kind = place, kind
        last_prefix = prefix


def entity_scores(predicted: Sequence[Sequence[str]], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of whole names, and the accuracy of tags, all in 0..1, as seqeval does."""
    found, true = (
        {(number, *entity) for number, tags in enumerate(sentences) for entity in entities(tags)}
        for sentences in (predicted, golds)
    )
    num_shared = len(found & true)
    pairs = [pair for tags in zip(predicted, golds, strict=True) for pair in zip(*tags, strict=True)]
    precision, recall = (num_shared / len(names) if names else 0.0 for names in (found, true))
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if num_shared else 0.0,
        "accuracy": sum(tag == other for tag, other in pairs) / len(pairs),
    }


@data_only
@dataclass(kw_only=True)
class MultipleChoice(Task[Tokenizer]):
    """Chooses the ending that fits a beginning, on records in the form of SWAG."""

    model_class: ClassVar[Any] = AutoModelForMultipleChoice
    score_names: ClassVar[Sequence[str]] = ("accuracy",)
    made = staticmethod(toy_records.story)

    context_column: str = "sent1"
    """Key of the first sentence."""
    question_column: str = "sent2"
    """Key of the beginning of the second sentence."""
    ending_columns: list[str] = field(default_factory=lambda: [f"ending{number}" for number in range(4)])
    """Keys of the endings."""
    label_column: str = "label"
    """Key of the number of the right ending, from 0."""
    max_seq_length: int | None = setting(None, least=1)
    """Longer inputs are cut to this many tokens; null: the limit of the tokenizer, at most 1024."""
    pad_to_max_length: bool = False
    """Pad all inputs to that length, instead of to the longest of their batch."""

    def texts(self, record: Record) -> Iterable[str]:
        return [
            str(value_of(record, self.context_column, "context_column")),
            str(value_of(record, self.question_column, "question_column")),
            *(str(value_of(record, column, "ending_columns")) for column in self.ending_columns),
        ]

    def classes(self, records: Sequence[Record]) -> list[Any]:
        return []  # the model scores each ending by itself

    def features(self, records: Sequence[Record], processor: Tokenizer) -> Features:
        contexts, endings = [], []
        for record in records:
            context, question, *parts = self.texts(record)
            contexts += [context] * len(parts)
            endings += [f"{question} {part}" for part in parts]
        encoded = processor(
            contexts,
            endings,
            truncation=True,
            max_length=min(self.max_seq_length or LONGEST, processor.model_max_length),
            padding="max_length" if self.pad_to_max_length else False,
        )
        size = len(self.ending_columns)
        grouped = {
            name: [values[at : at + size] for at in range(0, len(values), size)] for name, values in encoded.items()
        }
        labels = [{"label": self._right(record)} if self.label_column in record else {} for record in records]
        return [{**row, **label} for row, label in zip(rows(grouped), labels, strict=True)]

    def _right(self, record: Record) -> int:
        """Return the number of the right ending, which datasets of the hub store as a string of digits."""
        label = record[self.label_column]
        count = len(self.ending_columns)
        if str(label) not in map(str, range(count)):
            raise InputError(
                f"The label {label!r} in '{self.label_column}' is not the number of an ending, 0 to {count - 1}; "
                "correct the data, or set `task.label_column`."
            )
        return int(label)

    def collator(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> DataCollator:
        if self.pad_to_max_length:
            return default_data_collator
        return DataCollatorForMultipleChoice(processor, pad_to_multiple_of=multiple_of(args), return_tensors="pt")

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        is_right = best_class(prediction.predictions) == label_array(prediction)
        return {"accuracy": float(is_right.astype(np.float32).mean())}  # `run_swag.py` averages in float32

    def answers(self, predictions: Predictions, records: Sequence[Record]) -> list[str]:
        chosen = best_class(predictions)
        return [str(record[self.ending_columns[ending]]) for ending, record in zip(chosen, records, strict=True)]

    def golds(self, records: Sequence[Record]) -> list[str]:
        return [str(record[self.ending_columns[self._right(record)]]) for record in records]
