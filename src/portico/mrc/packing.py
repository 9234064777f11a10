"""Packing: several features share a row of a batch, each with a separate block of attention and positions.

Shape suffixes: B features of a batch, R rows, L tokens of a row, T tokens of the longest feature.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from portico.errors import InputError
from portico.hf_compat import QuestionAnsweringModelOutput
from portico.mrc.arrays import Int64s
from portico.mrc.models.loading import PLAIN_HEAD, head_of

_TOKEN_COLUMNS = ("input_ids", "token_type_ids")
_LAYOUT_COLUMNS = ("feature_rows", "feature_starts", "feature_lengths")
_ATTENTIONS = ("eager", "sdpa")
# Logit of tokens that a feature does not have: its exponential is 0 in every precision, its sums are finite.
_NO_TOKEN = -10000.0
_TOLERANCE = 1e-3
# Of a token in a layer: 24 operations times the squared width in its matrices, 4 times width and row length in its
# attention, which under a mask take 8 times as long each (a training step on a CPU, width 384; rough).
_LINEAR_COST, _ATTENTION_COST = 24, 4 * 8


def pack(lengths_B: Int64s, capacity: int) -> tuple[Int64s, Int64s]:
    """Return row and first token of every feature, ``int64 [B]`` each, in rows of ``capacity`` tokens.

    A longer feature gets a row to itself.
    """
    # First-fit decreasing: at most 11/9 of the fewest possible rows, plus 6/9 (Dósa, 2007).
    row_B, start_B = np.zeros_like(lengths_B), np.zeros_like(lengths_B)
    filled: list[int] = []
    for feature in np.argsort(-lengths_B, kind="stable").tolist():
        length = int(lengths_B[feature])
        row = next((row for row, used in enumerate(filled) if used + length <= capacity), len(filled))
        if row == len(filled):
            filled.append(0)
        row_B[feature], start_B[feature] = row, filled[row]
        filled[row] += length
    return row_B, start_B


def pack_cheaply(lengths_B: Int64s, max_length: int, hidden_size: int) -> tuple[Int64s, Int64s]:
    """Return what `pack` does, for rows of the length at which the batch costs the least, ``max_length`` at most.

    Rows of the longest feature's length are never more than padded ones; longer rows waste less but cost more
    attention. Nothing is measured, so that the same features are packed alike in every run.
    """
    longest = int(lengths_B.max())
    lengths = {longest, *(min(max_length, longest * quarters // 4) for quarters in range(5, 17)), max_length}
    packed = {length: pack(lengths_B, length) for length in sorted(lengths) if length >= longest}

    def cost(length: int) -> float:
        row_B, start_B = packed[length]
        num_tokens = (int(row_B.max()) + 1) * int((start_B + lengths_B).max())
        return num_tokens * (_LINEAR_COST * hidden_size + _ATTENTION_COST * length)

    return packed[min(packed, key=cost)]


@dataclass(frozen=True, eq=False)
class PackingCollator:
    """Packs the features of a batch into few rows; number of features, loss and gradients stay the same.

    The rows are as long as is cheapest for a model of this ``hidden_size``, ``max_length`` at most.

    A batch has ``feature_rows``, ``feature_starts`` and ``feature_lengths`` (``int64 [B]``), the features' labels
    (``int64 [B]``), and ``input_ids``, ``token_type_ids``, ``position_ids`` (from 0 in each feature) and ``segments``
    (1 and up for the features of a row, 0 on padding), ``int64 [R, L]`` with ``L`` of ``max_length`` at most. See
    :func:`enable_packing`, which returns it.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    hidden_size: int = 768

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        unpadded = [
            {name: list(compress(one[name], one["attention_mask"])) for name in _TOKEN_COLUMNS if name in one}
            for one in features
        ]
        lengths_B = np.array([len(feature["input_ids"]) for feature in unpadded], np.int64)
        row_B, start_B = pack_cheaply(lengths_B, self.max_length, self.hidden_size)
        shape = int(row_B.max()) + 1, int((start_B + lengths_B).max())
        padding = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": self.tokenizer.pad_token_type_id}
        columns: dict[str, Any] = dict(zip(_LAYOUT_COLUMNS, (row_B, start_B, lengths_B), strict=True))
        for name, value in features[0].items():
            if isinstance(value, int):
                columns[name] = np.array([feature[name] for feature in features], np.int64)
        for name in unpadded[0]:
            columns[name] = np.full(shape, padding[name], np.int64)
        columns["position_ids"], columns["segments"] = np.zeros((2, *shape), np.int64)
        for number, (feature, row, start) in enumerate(zip(unpadded, row_B, start_B, strict=True)):
            where = (row, slice(start, start + lengths_B[number]))
            for name, tokens in feature.items():
                columns[name][where] = tokens
            columns["position_ids"][where] = np.arange(lengths_B[number])
            columns["segments"][where] = number + 1
        return {name: torch.from_numpy(values) for name, values in columns.items()}


def enable_packing(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> PackingCollator:
    """Let a model read packed batches, after checking that packing does not change its logits.

    Features of a row do not attend to each other, and positions start at 0 in each. Start and end logits are returned
    as ``float [B, T]``, and the loss is that of the features without any padding. Other batches, weights and
    ``forward`` are not affected. An `InputError` is raised if this model cannot read packed batches.
    """
    # The loss of packed features is computed from start and end logits only.
    if (head := head_of(model)) != PLAIN_HEAD:
        raise InputError(
            f"`preprocess.packing=true` packs features for a plain question answering head, but the model's is "
            f"{head}; set it to false, or `model.head={PLAIN_HEAD}`."
        )
    attention = model.config._attn_implementation
    if attention not in _ATTENTIONS:
        raise InputError(
            f"Packing masks attention in blocks, which attn_implementation={attention!r} does not support; load the "
            f"model with one of {', '.join(_ATTENTIONS)}, or set `preprocess.packing=false`."
        )
    # Hooks, not a subclass: checkpoints and the columns that a trainer keeps depend on the class and its `forward`.
    packed_forward = _PackedForward()
    model.register_forward_pre_hook(packed_forward.before, with_kwargs=True)
    model.register_forward_hook(packed_forward.after, with_kwargs=True)
    collator = PackingCollator(tokenizer, max_length, model.config.hidden_size)
    was_training = model.training
    model.eval()
    try:
        _check_same_logits(model, collator)
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{type(model).__name__} gives packed features other logits than single features "
            f"({' '.join(str(error).split())[:200]}); set `preprocess.packing=false`, or use an encoder like BERT "
            "with a plain question answering head."
        ) from error
    finally:
        model.train(was_training)
    return collator


@torch.no_grad()
def _check_same_logits(model: PreTrainedModel, collator: PackingCollator) -> None:
    uses_types = "token_type_ids" in collator.tokenizer.model_input_names
    # The longest feature shows whether each token sees all others (no sliding window), as the block mask assumes.
    features: list[dict[str, list[int]]] = []
    for length in (collator.max_length, 5, 9):
        ids = [(7 * token + length) % (model.config.vocab_size - 1) + 1 for token in range(length)]
        types = {"token_type_ids": [int(2 * token > length) for token in range(length)]} if uses_types else {}
        features.append({"input_ids": ids, "attention_mask": [1] * length, **types})
    packed: Any = model(**{name: values.to(model.device) for name, values in collator(features).items()})
    for number, feature in enumerate(features):
        single: Any = model(**{name: torch.tensor([ids], device=model.device) for name, ids in feature.items()})
        for name in ("start_logits", "end_logits"):
            logits_T = packed[name][number, : len(feature["input_ids"])]
            torch.testing.assert_close(logits_T, single[name][0], atol=_TOLERANCE, rtol=_TOLERANCE)


class _PackedForward:
    """The hooks around one model's forward: the second needs what the first takes out of a batch."""

    def __init__(self) -> None:
        self._batch: dict[str, Tensor] | None = None

    def before(self, model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        self._batch = None
        if "segments" not in kwargs:
            return None
        kept: dict[str, Any] = {name: kwargs[name] for name in _TOKEN_COLUMNS if name in kwargs}
        self._batch = {name: value for name, value in kwargs.items() if name not in kept}
        mask = _block_mask(kwargs["segments"], model)
        # RoBERTa-like models number positions from the one after the id of the padding token.
        tables = (one for name, one in model.named_modules() if name.endswith("position_embeddings"))
        padding_idx = next((one.padding_idx for one in tables if isinstance(one, torch.nn.Embedding)), None)
        position_ids = kwargs["position_ids"] + (0 if padding_idx is None else padding_idx + 1)
        return args, {**kept, "position_ids": position_ids, "attention_mask": mask, "return_dict": True}

    def after(self, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        batch, self._batch = self._batch, None
        if batch is None:
            return output
        start_logits, end_logits = (_unpacked(output[name], batch) for name in ("start_logits", "end_logits"))
        loss, starts, ends = None, batch.get("start_positions"), batch.get("end_positions")
        if starts is not None and ends is not None:
            loss = model.loss_function(start_logits, end_logits, starts, ends)
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start_logits, end_logits=end_logits)


def _block_mask(segments_RL: Tensor, model: Any) -> Tensor:
    """Return which token sees which, ``[R, 1, L, L]``: bool, or what eager attention adds to its scores."""
    # Padding sees padding: a token that saw nothing at all would become NaN.
    sees = segments_RL[:, None, :, None] == segments_RL[:, None, None, :]
    if model.config._attn_implementation == "sdpa":
        return sees
    return torch.zeros(sees.shape, dtype=model.dtype, device=sees.device).masked_fill(
        ~sees, torch.finfo(model.dtype).min
    )


def _unpacked(logits_RL: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    row_B, start_B, length_B = (batch[name] for name in _LAYOUT_COLUMNS)
    token_T = torch.arange(int(length_B.max()), device=logits_RL.device)
    index_BT = (start_B[:, None] + token_T).clamp(max=logits_RL.shape[1] - 1)
    missing_BT = token_T >= length_B[:, None]
    return logits_RL[row_B[:, None], index_BT].masked_fill(missing_BT, _NO_TOKEN)
