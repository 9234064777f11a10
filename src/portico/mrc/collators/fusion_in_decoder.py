"""Batches for fusion-in-decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase


@dataclass
class FiDDataCollator:
    """Stacks the passages of each question and pads the answers.

    Args:
        tokenizer: Its padding side is that of the labels, and its padding token fills up passages.
        model: Makes ``decoder_input_ids`` of the labels, if it can.
        padding: Taken for compatibility: the passages of a feature are of one length already, and features of fewer
            or shorter passages are always filled up to the largest of the batch.
        max_length: Longest labels, ``None`` for the longest of the batch.
        pad_to_multiple_of: Make the labels a multiple of this long.
        label_pad_token_id: What fills up labels; the loss leaves -100 out.
        return_tensors: ``"pt"``.
    """

    tokenizer: PreTrainedTokenizerBase
    model: Any = None
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def __call__(self, features: Sequence[Mapping[str, Any]], return_tensors: str | None = None) -> dict[str, Any]:
        """Return a batch.

        Args:
            features: ``input_ids`` and ``attention_mask``, ``[N, L]``, ``labels``, ``[T]``, and other columns.
            return_tensors: ``"pt"``.

        Returns:
            Tensors ``int64 [B, N, L]``; ``labels`` and, if the model makes them, ``decoder_input_ids``,
            ``int64 [B, T]``; columns that are no numbers as lists.
        """
        batch: dict[str, Any] = {}
        for name in features[0]:
            values = [feature[name] for feature in features]
            if name == "labels":
                continue
            if name in ("input_ids", "attention_mask"):
                batch[name] = self._stacked(values, self._filling(name))
            else:
                batch[name] = _tensor_or_list(values)
        if features[0].get("labels") is not None:
            batch["labels"] = self._padded_labels([list(feature["labels"]) for feature in features])
            make_inputs = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
            if make_inputs is not None:
                batch["decoder_input_ids"] = make_inputs(labels=batch["labels"])
        return batch

    def _filling(self, name: str) -> int:
        return int(self.tokenizer.pad_token_id or 0) if name == "input_ids" else 0

    def _stacked(self, values: Sequence[Any], filling: int) -> Tensor:
        tensors = [torch.as_tensor(np.asarray(value), dtype=torch.int64) for value in values]
        shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
        stacked = torch.full((len(tensors), *shape), filling, dtype=torch.int64)
        for row, tensor in zip(stacked, tensors, strict=True):
            row[tuple(slice(size) for size in tensor.shape)] = tensor
        return stacked

    def _padded_labels(self, labels: list[list[int]]) -> Tensor:
        length = max(len(label) for label in labels) if self.max_length is None else self.max_length
        if self.pad_to_multiple_of is not None:
            length = -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of
        rows = [label[:length] for label in labels]
        fillings = [[self.label_pad_token_id] * (length - len(row)) for row in rows]
        on_the_right = self.tokenizer.padding_side == "right"
        return torch.tensor(
            [row + filling if on_the_right else filling + row for row, filling in zip(rows, fillings, strict=True)]
        )


def _tensor_or_list(values: list[Any]) -> Any:
    """Return numbers of one shape as a tensor; anything else as it is."""
    if all(isinstance(value, Tensor) for value in values) and len({value.shape for value in values}) == 1:
        return torch.stack(values)
    if all(isinstance(value, int | float | bool | np.number) for value in values):
        return torch.tensor(values)
    return values
