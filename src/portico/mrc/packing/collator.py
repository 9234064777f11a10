"""Batches in which several features share a row.

Shape suffixes: B features of a batch, R rows, L tokens of a row.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from portico.mrc.packing.layout import pack

_OF_TOKENS = ("input_ids", "token_type_ids")
LAYOUT_NAMES = ("feature_rows", "feature_starts", "feature_lengths")


class PackingCollator:
    """Lays the features of a batch into few rows; the batch stays the same features, and so does the training.

    The batch has ``feature_rows``, ``feature_starts`` and ``feature_lengths`` (``int64 [B]``), the features' labels
    (``int64 [B]``), and ``input_ids``, ``token_type_ids``, ``position_ids`` (from 0 in each feature) and ``segments``
    (1 and up for the features of a row, 0 on padding), ``int64 [R, L]``. A model reads it once
    :func:`~portico.mrc.packing.forward.read_packed` was called for it.

    Args:
        tokenizer: Names the padding tokens.
        max_length: Most tokens of a row.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self._padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        self._max_length = max_length

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the packed batch of some features."""
        unpadded = [_without_padding(feature) for feature in features]
        lengths_B = np.array([len(feature["input_ids"]) for feature in unpadded], np.int64)
        layout = pack(lengths_B, self._max_length)
        columns: dict[str, Any] = dict(zip(LAYOUT_NAMES, (layout.row_B, layout.start_B, lengths_B), strict=True))
        for name, value in features[0].items():
            if isinstance(value, int):
                columns[name] = np.array([feature[name] for feature in features], np.int64)
        for name in _OF_TOKENS:
            if name in features[0]:
                columns[name] = np.full((layout.num_rows, layout.length), self._padding[name], np.int64)
        columns["position_ids"], columns["segments"] = np.zeros((2, layout.num_rows, layout.length), np.int64)
        for number, (feature, row, start) in enumerate(zip(unpadded, layout.row_B, layout.start_B, strict=True)):
            where = (row, slice(start, start + lengths_B[number]))
            for name in _OF_TOKENS:
                if name in feature:
                    columns[name][where] = feature[name]
            columns["position_ids"][where] = np.arange(lengths_B[number])
            columns["segments"][where] = number + 1
        return {name: torch.from_numpy(values) for name, values in columns.items()}


def _without_padding(feature: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists of a feature without the tokens that its attention mask hides."""
    mask = feature["attention_mask"]
    if all(mask):
        return {name: feature[name] for name in _OF_TOKENS if name in feature}
    return {
        name: [value for value, seen in zip(feature[name], mask, strict=True) if seen]
        for name in _OF_TOKENS
        if name in feature
    }
