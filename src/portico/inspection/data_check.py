"""Every example of a data set, read once and collated without the model: what would end a run at its row."""

import math
import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from portico.loop.failures import num_positions

_MOST_NAMED = 5
_ROWS_AT_ONCE = 256
_ROWS_FOR_WORKERS = 20_000  # with fewer, starting them takes longer than reading
_IGNORED = -100
_LABELS = ("labels", "label")
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForImageClassification")
# What has a fault of each kind, to follow a number, and its cure.
_KINDS = {
    "raises": ("row{s} that cannot be read", "correct these examples, or leave them out."),
    "collator": (
        "batch{es} that the data collator cannot make",
        "give rows that fit together, a tokenizer as `processing_class` that pads them, or another `data_collator`.",
    ),
    "label": (
        "row{s} with labels that the model does not have",
        "load it with the right `num_labels`, or correct them.",
    ),
    "finite": ("row{s} with labels that are not finite", "correct these examples, or leave them out."),
    "input": (
        "row{s} with numbers that are not finite",
        "if they do not stand for missing values, correct these examples, or leave them out.",
    ),
    "token": (
        "row{s} with token ids outside of the vocabulary",
        "use the tokenizer of the model, or call `model.resize_token_embeddings(len(tokenizer))`.",
    ),
    "long": (
        "row{s} with more tokens than the model takes",
        "let the tokenizer cut them, by `truncation=True, max_length=...`.",
    ),
    "empty": ("row{s} without tokens", "leave them out, by `data.filter`."),
    "unlabelled": (
        "row{s} without a label that counts, since all are -100, and a batch of them has the loss NaN",
        "leave them out, or cut texts so that some of the answer is left.",
    ),
    "uncounted": (
        "row{s} without a label that counts, since all are -100, so nothing is learned from them",
        "leave them out, or cut texts so that some of the answer is left.",
    ),
    "missing": (
        "row{s} without a column that others have, or with None in it",
        "fill it, or leave these rows out.",
    ),
    "span": (
        "row{s} with an answer outside of the tokens",
        "point these to the first token, or leave them out.",
    ),
}


# These end no run by themselves.
_ONLY_WARNED = ("input", "uncounted")


@dataclass(frozen=True)
class ModelLimits:
    """What a model takes; None where it has no limit, or none is known."""

    vocabulary: int | None = None
    positions: int | None = None
    num_labels: int | None = None
    """Of a classification, by one class for an example or for a token."""
    label_vocabulary: int | None = None
    """Of a language model."""

    @classmethod
    def of(cls, model: nn.Module) -> "ModelLimits":
        config: Any = getattr(model, "config", None)
        if config is None:
            return cls()
        config = getattr(config, "text_config", None) or config
        table = None
        if hasattr(model, "get_input_embeddings"):
            try:
                table = model.get_input_embeddings()  # type: ignore[operator]
            except NotImplementedError:
                table = None
        size = table.num_embeddings if isinstance(table, nn.Embedding) else None
        name = type(model).__name__
        is_classifier = name.endswith(_CLASSIFIERS)
        labels = config.num_labels if is_classifier and config.num_labels > 1 else None
        is_language_model = name.endswith(("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "ForMaskedLM"))
        positions = None if config.is_encoder_decoder and not is_classifier else num_positions(model, config)
        return cls(size, positions, labels, size if is_language_model else None)


@dataclass
class Examined:
    """What was found in a set."""

    name: str
    lengths: list[int] = field(default_factory=list)
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The first faults of each kind."""
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, what: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        named = self.examples.setdefault(kind, [])
        if len(named) < _MOST_NAMED:
            named.append(what)

    def join(self, other: "Examined") -> None:
        self.lengths += other.lengths
        for kind, number in other.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + number
            named = self.examples.setdefault(kind, [])
            named += other.examples[kind][: _MOST_NAMED - len(named)]

    def faults(self) -> list[str]:
        """Return a sentence for each kind of fault, with the first rows and how many there are."""
        return self._sentences(self.counts.keys() - _ONLY_WARNED)

    def warnings(self) -> list[str]:
        """Return the same of what may be meant so."""
        return self._sentences(self.counts.keys() & _ONLY_WARNED)

    def _sentences(self, kinds: Collection[str]) -> list[str]:
        found = []
        for kind, number in self.counts.items():
            if kind not in kinds:
                continue
            what, cure = _KINDS[kind]
            what = what.format(s="", es="") if number == 1 else what.format(s="s", es="es")
            more = f" and {number - _MOST_NAMED} more" if number > _MOST_NAMED else ""
            found.append(
                f"`{self.name}`: {number} {what}: {'; '.join(self.examples[kind])}{more}. {cure[0].upper()}{cure[1:]}"
            )
        return found


def examine_data(name: str, loader: Any, limits: ModelLimits, *, num_rows: int) -> Examined:
    """Read all examples of a loader's data set, or ``num_rows`` of a stream, and make batches of them."""
    dataset = getattr(loader, "dataset", None)
    collate = getattr(loader, "collate_fn", None) or (lambda rows: None)
    size = int(getattr(loader, "batch_size", None) or getattr(loader.batch_sampler, "batch_size", None) or 8)
    whole = Examined(name)
    with kept_random_states():
        if not (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
            _examine_stream(whole, dataset, collate, limits, size, num_rows)
            return whole
        parts = _RowGroups(name, dataset, collate, limits, size)
        workers = len(os.sched_getaffinity(0)) if len(dataset) >= _ROWS_FOR_WORKERS else 0
        if workers and torch.cuda.is_initialized():
            workers = 0  # a process that has used the device cannot be copied
        unbatched: Any = _keep
        reader = DataLoader(parts, batch_size=None, num_workers=workers, collate_fn=unbatched)
        for part in reader:
            whole.join(part)
    return whole


def _keep(part: Examined) -> Examined:
    return part


def _examine_stream(whole: Examined, stream: Any, collate: Any, limits: ModelLimits, size: int, num_rows: int) -> None:
    rows: list[tuple[int, Any]] = []
    try:
        for row in enumerate(islice(iter(stream), num_rows)):
            rows.append(row)
            if len(rows) == _ROWS_AT_ONCE:
                _examine_rows(whole, rows, collate, limits, size)
                rows = []
    except Exception as error:
        whole.add("raises", f"row {len(whole.lengths) + len(rows)} raises {_describe(error)}")
    _examine_rows(whole, rows, collate, limits, size)


class _RowGroups(Dataset[Examined]):
    """The findings of some hundred rows at an index."""

    def __init__(self, name: str, dataset: Any, collate: Any, limits: ModelLimits, size: int) -> None:
        self._name, self._dataset = name, dataset
        self._collate, self._limits = collate, limits
        self._size = size
        self._rows = size * max(1, _ROWS_AT_ONCE // size)

    def __len__(self) -> int:
        return math.ceil(len(self._dataset) / self._rows)

    def __getitem__(self, index: int) -> Examined:
        if index >= len(self):
            raise IndexError(index)
        part = Examined(self._name)
        numbers = range(index * self._rows, min((index + 1) * self._rows, len(self._dataset)))
        rows: list[tuple[int, Any]] = []
        for number, row in zip(numbers, self._read(numbers), strict=True):
            if isinstance(row, _Unreadable):
                part.add("raises", f"row {number} raises {row.why}")
                row = None
            rows.append((number, row))
        _examine_rows(part, rows, self._collate, self._limits, self._size)
        return part

    def _read(self, numbers: range) -> list[Any]:
        if hasattr(self._dataset, "__getitems__"):
            try:
                return list(self._dataset.__getitems__(list(numbers)))
            except Exception:  # read one by one, the row is known
                pass
        return [_read_row(self._dataset, number) for number in numbers]


@dataclass(frozen=True)
class _Unreadable:
    why: str


def _read_row(dataset: Any, number: int) -> Any:
    try:
        return dataset[number]
    except Exception as error:
        return _Unreadable(_describe(error))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def _examine_rows(
    found: Examined, rows: Sequence[tuple[int, Any]], collate: Any, limits: ModelLimits, size: int
) -> None:
    columns = set().union(*(row for _, row in rows if isinstance(row, Mapping)))
    complete = next((row for _, row in rows if isinstance(row, Mapping) and not _find_missing(row, columns)), None)
    is_taken: dict[tuple[str, ...], bool] = {}  # by the columns that a row lacks
    incomplete = set()
    for number, row in rows:
        found.lengths.append(0 if row is None else length_of(row))
        if not isinstance(row, Mapping):
            continue
        lacking = _find_missing(row, columns)
        if lacking and lacking not in is_taken:
            is_taken[lacking] = _takes_incomplete(collate, row, complete)
        if lacking and not is_taken[lacking]:
            incomplete.add(number)
            for name in lacking:
                what = f"lacks `{name}`" if name not in row else f"has None in `{name}`"
                found.add("missing", f"row {number} {what}")
        for kind, what in _faults_of(row, limits, size):
            found.add(kind, f"row {number} {what}")
    readable = [pair for pair in rows if pair[1] is not None]
    for first in range(0, len(readable), size):
        batch = readable[first : first + size]
        if any(number in incomplete for number, _ in batch):
            continue  # named by its row
        try:
            collate([dict(row) if isinstance(row, Mapping) else row for _, row in batch])
        except Exception as error:
            found.add("collator", f"rows {batch[0][0]} to {batch[-1][0]} raise {_describe(error)}")


def _find_missing(row: Mapping[str, Any], columns: set[str]) -> tuple[str, ...]:
    return tuple(name for name in sorted(columns) if row.get(name) is None)


def _takes_incomplete(collate: Any, row: Mapping[str, Any], complete: Mapping[str, Any] | None) -> bool:
    """Return whether the collator makes a whole batch of this row and another one, in either order."""
    other = row if complete is None else complete
    try:
        batches = [collate([dict(first), dict(second)]) for first, second in ((row, other), (other, row))]
        whole = collate([dict(other), dict(other)])
    except Exception:
        return False
    return not isinstance(whole, Mapping) or all(batch.keys() == whole.keys() for batch in batches)


def length_of(row: Any) -> int:
    """Return the number of tokens of an example, or the size of its largest part."""
    if not isinstance(row, Mapping):
        return 0
    for name in ("input_ids", "input_features", "input_values"):
        if isinstance(row.get(name), Sized):
            return len(row[name])
    return max((len(value) for value in row.values() if isinstance(value, Sized)), default=0)


def _faults_of(row: Mapping[str, Any], limits: ModelLimits, size: int) -> Iterator[tuple[str, str]]:
    tokens = _numbers(row.get("input_ids"))
    if tokens is not None:
        if tokens.size == 0:
            yield "empty", "has no `input_ids`"
        elif limits.vocabulary is not None and (tokens.max() >= limits.vocabulary or tokens.min() < 0):
            wrong = tokens.max() if tokens.max() >= limits.vocabulary else tokens.min()
            yield "token", f"has the id {wrong} (the model has {limits.vocabulary:,})"
        if limits.positions is not None and tokens.shape[-1:] and tokens.shape[-1] > limits.positions:
            yield "long", f"has {tokens.shape[-1]:,} tokens (the model takes {limits.positions:,})"
    for name, value in row.items():
        numbers = _numbers(value)
        if numbers is not None and numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            wrong = numbers.reshape(-1)[~np.isfinite(numbers).reshape(-1)][0]
            yield "finite" if name in _LABELS else "input", f"has {wrong} in `{name}`"
    yield from _label_faults(row, tokens, limits, size)


def _label_faults(
    row: Mapping[str, Any], tokens: "np.ndarray[Any, Any] | None", limits: ModelLimits, size: int
) -> Iterator[tuple[str, str]]:
    labels = _numbers(row.get("labels", row.get("label")))
    if labels is not None and labels.dtype.kind in "iu" and labels.size:
        counted = labels[labels != _IGNORED]
        most = limits.num_labels if limits.num_labels is not None else limits.label_vocabulary
        if limits.num_labels is not None and labels.ndim and tokens is not None and labels.shape != tokens.shape:
            most = None  # several labels of an example
        if most is not None and counted.size and (counted.max() >= most or counted.min() < 0):
            wrong = counted.max() if counted.max() >= most else counted.min()
            what = "classes" if limits.num_labels is not None else "tokens"
            yield "label", f"has the label {wrong} (the model has {most:,} {what}, 0 to {most - 1:,})"
        if labels.ndim and not counted.size and limits.label_vocabulary is not None:
            yield "unlabelled" if size == 1 else "uncounted", "has labels of -100 only"
    if tokens is not None:
        for name in ("start_positions", "end_positions"):
            position = _numbers(row.get(name))
            if position is not None and position.size and (position.max() >= tokens.size or position.min() < 0):
                yield "span", f"has {name[:-1].replace('_', ' ')} {position.max()} and {tokens.size} tokens"


def _numbers(value: Any) -> "np.ndarray[Any, Any] | None":
    """Return numbers as an array; None for anything else."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value.float().numpy() if value.dtype is torch.bfloat16 else value.numpy()
    if value is None or isinstance(value, str | bytes | Mapping):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # rows of several lengths
        return None
    if array.size == 0:
        return array.astype(np.int64)
    return array if array.dtype.kind in "iuf" else None


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Leave the global generators as they were: data sets may draw from them."""
    states = (random.getstate(), np.random.get_state())
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])
