"""Data collators that add the inputs of a head, and the one of fusion-in-decoder."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import (
    BatchEncoding,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    default_data_collator,
)

from portico.mrc.features.labels import TargetType
from portico.mrc.features.tokenization import choose_fill_token
from portico.mrc.features.windows import FeatureRows, FeatureSet

Collator: TypeAlias = Callable[..., Any]


def head_collator(head: str, tokenizer: PreTrainedTokenizerBase, collator: Collator | None = None) -> Collator:
    """Return a collator that adds the inputs of a head to the batches of ``collator``, which pads by default."""
    collator = DataCollatorWithPadding(tokenizer) if collator is None else collator
    if head in ("extractive", "extractive_with_confidence"):
        return TargetTypeCollator(tokenizer, collator)
    return BeamSearchCollator(tokenizer, collator) if head == "beam_search" else collator


@dataclass
class RightPaddingCollator:
    """Moves the padding that ``collator`` adds on the left to the right.

    Labels, offsets and scores count the tokens of a row, which padding on the left would move; and a model with
    absolute positions would give other scores in every batch. Rows that are padded already stay as they are.
    """

    collator: Collator

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        batch = self.collator(features)
        tokens_BL = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if not isinstance(tokens_BL, Tensor) or tokens_BL.ndim != 2:
            return batch
        shifts = [_num_added_on_the_left(tokens, row) for tokens, row in zip(tokens_BL, features, strict=True)]
        if any(shifts):
            width = tokens_BL.shape[1]
            place_L = torch.arange(width, device=tokens_BL.device)
            place_BL = (place_L + torch.tensor(shifts, device=tokens_BL.device)[:, None]) % width
            row_B1 = torch.arange(len(shifts), device=tokens_BL.device)[:, None]
            for name, values in batch.items():
                if isinstance(values, Tensor) and values.shape[:2] == tokens_BL.shape:
                    batch[name] = values[row_B1, place_BL]
        return batch


def _num_added_on_the_left(tokens_L: Tensor, row: Mapping[str, Any]) -> int:
    added = len(tokens_L) - len(row["input_ids"])
    if added <= 0:
        return 0
    tokens = torch.as_tensor(row["input_ids"], device=tokens_L.device)
    on_the_left = torch.equal(tokens_L[added:], tokens) and not torch.equal(tokens_L[:-added], tokens)
    return added if on_the_left else 0


@dataclass
class ColumnCollator:
    """Makes the batches of ``collator`` from the columns of a ``FeatureSet``, many times as fast as from its rows.

    Padding is on the right, whatever the padding side of the tokenizer: see :class:`RightPaddingCollator`. For other
    rows and non-numeric columns, it calls ``collator``. Two collators can be replaced: the default collator
    of transformers, and ``DataCollatorWithPadding`` if it pads to the longest row.
    """

    collator: Collator

    @classmethod
    def knows(cls, collator: Collator) -> bool:
        if collator is default_data_collator:
            return True
        # Not subclasses, nor tokenizers that pad in their own way.
        if type(collator) is not DataCollatorWithPadding:
            return False
        tokenizer = type(collator.tokenizer)
        return (
            (collator.padding in (True, "longest"), collator.pad_to_multiple_of, collator.return_tensors)
            == (True, None, "pt")
            and tokenizer.pad is PreTrainedTokenizerBase.pad
            and tokenizer._pad is PreTrainedTokenizerBase._pad
        )

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        columns = self._columns(features) if isinstance(features, FeatureRows) else None
        if columns is None:
            return RightPaddingCollator(self.collator)([*features])
        tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
        return tensors if self.collator is default_data_collator else BatchEncoding(tensors)

    def _columns(self, rows: FeatureRows) -> Mapping[str, Any] | None:
        if self.collator is default_data_collator:
            # Rows of different lengths are an error, which the collator reports.
            return rows.pad({}) if len(np.unique(rows.lengths)) == 1 else None
        padding_collator: Any = self.collator
        tokenizer = padding_collator.tokenizer
        if not {"input_ids", "attention_mask"} <= set(rows.features.column_names):
            return None
        padding = {
            "input_ids": choose_fill_token(tokenizer),
            "token_type_ids": tokenizer.pad_token_type_id,
            "attention_mask": 0,
        }
        return rows.pad(padding)


def batch_by_columns(features: object, collator: Collator) -> tuple[Any, Collator]:
    """Return features and a collator that make the same batches faster, or the arguments if there is no faster way.

    Their batches are padded on the right.
    """
    if not isinstance(features, FeatureSet):
        return features, collator
    if ColumnCollator.knows(collator):
        return features.by_columns(), ColumnCollator(collator)
    outer: Any = collator
    if type(collator) in (TargetTypeCollator, PackingCollator) and ColumnCollator.knows(outer.collator):
        return features.by_columns(), replace(outer, collator=ColumnCollator(outer.collator))
    return features, collator


@dataclass
class PackingCollator:
    """Packs the features of a batch into one row, after ``collator`` has padded them.

    A batch has ``feature_starts`` and ``feature_lengths`` (``int64 [B]``), the place of each feature in the row, where
    shorter features come first, and ``feature_padding`` (``int64 [B]``) if features were made with padding on the
    left; the features' labels (``int64 [B]``); and ``input_ids``, ``token_type_ids`` and ``position_ids``, which are
    from 0 in each feature (``int64 [1, N]``, N tokens in all). A batch with too little padding for a model of this
    ``width`` stays as it is, with ``feature_lengths``: attending feature by feature would cost more.
    """

    token_columns: ClassVar = ("input_ids", "token_type_ids")
    # Least share of padding in a packed batch, and least work saved by each call of attention, of which there is one
    # for each distinct length: tokens of padding times the squared width, with which the work for a token grows.
    # Within both, no packed batch took over 2 % longer on a CPU, at widths of 64 to 384 with batches of 2 to 32.
    worthwhile_padding: ClassVar = 0.1
    worthwhile_work: ClassVar = 1e5
    collator: Collator
    width: float = math.inf

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = dict(RightPaddingCollator(self.collator)(features))
        is_token_BL = batch["attention_mask"].bool()
        lengths_B = is_token_BL.sum(dim=1)
        # Features that were padded on the left when they were made: their labels count the padding.
        padding_B = is_token_BL.int().argmax(dim=1)
        if padding_B.any():
            batch["feature_padding"] = padding_B
        elif not self._is_worthwhile(lengths_B, is_token_BL.numel()):
            return {"feature_lengths": lengths_B, **batch}
        del batch["attention_mask"]
        # Features of one length are next to each other, since they attend together.
        order_B = lengths_B.argsort(stable=True)
        starts_B = torch.empty_like(lengths_B)
        starts_B[order_B] = lengths_B[order_B].cumsum(0) - lengths_B[order_B]
        batch["position_ids"] = is_token_BL.cumsum(dim=1) - 1
        tokens = {
            name: batch.pop(name)[order_B][is_token_BL[order_B]][None]
            for name in (*self.token_columns, "position_ids")
            if name in batch
        }
        # The first column tells a trainer how many features there are.
        return {"feature_starts": starts_B, "feature_lengths": lengths_B, **batch, **tokens}

    def _is_worthwhile(self, lengths_B: Tensor, num_places: int) -> bool:
        num_saved = num_places - int(lengths_B.sum())
        work = num_saved * self.width**2 / len(lengths_B.unique())
        return num_saved >= self.worthwhile_padding * num_places and work >= self.worthwhile_work


@dataclass
class TargetTypeCollator:
    """Adds ``target_type``, ``int64 [B]``, to batches of ``collator`` that only have positions: no answer, or a span.

    "No answer" is labelled at the classification token of ``tokenizer``.
    """

    tokenizer: PreTrainedTokenizerBase
    collator: Collator

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        batch = RightPaddingCollator(self.collator)(features)
        if "start_positions" in batch and "target_type" not in batch:
            lacks_B = _lacks_answer(batch, _class_tokens(batch, self.tokenizer))
            batch["target_type"] = torch.where(lacks_B, int(TargetType.NO_ANSWER), int(TargetType.SPAN_ANSWER))
        return batch


@dataclass
class BeamSearchCollator:
    """Adds the inputs of a beam search head to features that lack them.

    These are ``cls_index``, ``int64 [B]``, the index of the classification token; ``p_mask``, ``float [B, L]``, 1
    where no answer can be; and with positions ``is_impossible``, ``float [B]``, 1 if there is no answer. The context
    comes second if the tokenizer pads on the right, else first; ``collator`` makes the batch.
    """

    tokenizer: PreTrainedTokenizerBase
    collator: Collator

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        rows = [{key: row[key] for key in row if key != "p_mask"} for row in features]
        batch = RightPaddingCollator(self.collator)(rows)
        tokens_BL = batch["input_ids"]
        cls_index_B = _class_tokens(batch, self.tokenizer)
        batch.setdefault("cls_index", cls_index_B)
        batch["p_mask"] = 1.0 - self._can_answer(tokens_BL, cls_index_B).float()
        if "start_positions" in batch:
            batch.setdefault("is_impossible", _lacks_answer(batch, cls_index_B))
            batch["is_impossible"] = batch["is_impossible"].float()
        return batch

    def _can_answer(self, tokens_BL: Tensor, cls_index_B: Tensor) -> Tensor:
        """Return a mask of the context and of the classification token, which means "no answer"."""
        # As in transformers' `run_qa_beam_search.py`, but from the tokens: features do not keep their sequence ids.
        names = ("cls_token_id", "sep_token_id", "pad_token_id", "bos_token_id", "eos_token_id")
        marks = {mark for mark in (getattr(self.tokenizer, name) for name in names) if mark is not None}
        is_text_BL = ~torch.isin(tokens_BL, torch.tensor(sorted(marks), device=tokens_BL.device))
        begins_BL = is_text_BL.clone()
        begins_BL[:, 1:] &= ~is_text_BL[:, :-1]
        number_BL = begins_BL.cumsum(dim=1)
        # If the question is empty, the context is the only sequence.
        context_B1 = number_BL[:, -1:].clamp(max=2 if self.tokenizer.padding_side == "right" else 1)
        can_answer = is_text_BL & (number_BL == context_B1)
        return can_answer.scatter(1, cls_index_B[:, None], True)


def _class_tokens(batch: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Return the first class token of each row, without one the first that begins a text, otherwise 0; ``[B]``."""
    tokens_BL: Tensor = batch["input_ids"]
    present_BL = batch["attention_mask"].bool() if "attention_mask" in batch else torch.ones_like(tokens_BL).bool()
    position_B = torch.zeros_like(tokens_BL[:, 0])
    for mark in (tokenizer.bos_token_id, tokenizer.cls_token_id):
        is_mark_BL = present_BL & (tokens_BL == (-1 if mark is None else mark))
        position_B = torch.where(is_mark_BL.any(dim=1), is_mark_BL.int().argmax(dim=1), position_B)
    return position_B


def _lacks_answer(batch: Mapping[str, Any], class_token_B: Tensor) -> Tensor:
    return batch["start_positions"].reshape(-1) == class_token_B


@dataclass
class FiDDataCollator(DataCollatorForSeq2Seq):
    """Stacks the passages of each question and pads the answers, for fusion-in-decoder.

    Args:
        tokenizer: Provides the padding token of passages and the padding side of labels.
        model: Makes ``decoder_input_ids`` from the labels, if it can.
        padding: Ignored: the passages of a feature have one length already, and features with fewer or shorter
            passages are always padded to the largest of the batch.
        max_length: Length of the labels, ``None`` for the longest of the batch.
        pad_to_multiple_of: Pad the labels to a multiple of this length.
        label_pad_token_id: Padding of the labels; the loss ignores -100.
        return_tensors: ``"pt"``.
    """

    def __call__(self, features: Sequence[Mapping[str, Any]], return_tensors: str | None = None) -> dict[str, Any]:
        """Return a batch of features with ``input_ids`` and ``attention_mask``, ``[N, L]``, and ``labels``, ``[T]``.

        It has tensors ``int64 [B, N, L]``; ``labels`` and, if the model makes them, ``decoder_input_ids``,
        ``int64 [B, T]``; other columns, as lists if they are not numbers.
        """
        paddings = {"input_ids": int(self.tokenizer.pad_token_id or 0), "attention_mask": 0}
        batch: dict[str, Any] = {}
        for name in features[0]:
            values = [feature[name] for feature in features]
            if name in paddings:
                batch[name] = _stack(values, paddings[name])
            elif name != "labels":
                batch[name] = _tensor_or_list(values)
        if features[0].get("labels") is not None:
            batch["labels"] = self._pad_labels([list(feature["labels"]) for feature in features])
            make_inputs = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
            if make_inputs is not None:
                batch["decoder_input_ids"] = make_inputs(labels=batch["labels"])
        return batch

    def _pad_labels(self, labels: list[list[int]]) -> Tensor:
        length = max(len(label) for label in labels) if self.max_length is None else self.max_length
        if self.pad_to_multiple_of is not None:
            length = -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of
        rows = [label[:length] for label in labels]
        paddings = [[self.label_pad_token_id] * (length - len(row)) for row in rows]
        on_the_right = self.tokenizer.padding_side == "right"
        return torch.tensor(
            [row + padding if on_the_right else padding + row for row, padding in zip(rows, paddings, strict=True)]
        )


def _stack(values: Sequence[Any], padding: int) -> Tensor:
    tensors = [torch.as_tensor(np.asarray(value), dtype=torch.int64) for value in values]
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    stacked = torch.full((len(tensors), *shape), padding, dtype=torch.int64)
    for row, tensor in zip(stacked, tensors, strict=True):
        row[tuple(slice(size) for size in tensor.shape)] = tensor
    return stacked


def _tensor_or_list(values: list[Any]) -> Any:
    """Return numbers of one shape as a tensor, and anything else unchanged."""
    if all(isinstance(value, Tensor) for value in values) and len({value.shape for value in values}) == 1:
        return torch.stack(values)
    if all(isinstance(value, int | float | bool | np.number) for value in values):
        return torch.tensor(values)
    return values
