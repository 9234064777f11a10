"""Packing: the features of a batch follow each other in a single row, which has no padding.

Attention is computed within each feature, and positions start at 0 in each.

Shape suffixes: B features of a batch, N tokens of all of them, T tokens of the longest; H heads, D width of a head.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from portico.compat.transformers import QuestionAnsweringModelOutput
from portico.errors import InputError
from portico.mrc.collators import PackingCollator
from portico.mrc.models.loading import PLAIN_HEAD, head_of

_ATTENTION = "portico_packed"
_ORDINARY_ATTENTION = "sdpa"
# Logit of tokens that a feature does not have: its exponential is 0 in every precision, its sums are finite.
_NO_TOKEN = -10000.0
_TOLERANCE = 1e-3

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _disable_compile(function: FunctionT) -> FunctionT:
    """Keep a function out of compiled graphs."""
    reason = "each packed batch has other lengths, and would be compiled again"
    return torch.compiler.disable(function, reason=reason)


def enable_packing(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> PackingCollator:
    """Let a model read packed batches, after checking that packing does not change its logits.

    The model then returns start and end logits as ``float [B, T]``, and the same loss as for the features without any
    padding. Other batches, weights and ``forward`` are not affected. ``max_length`` is the length of the longest
    feature, in tokens.

    Raises:
        InputError: If the model cannot read packed batches.
    """
    # The loss of packed features is computed from start and end logits only.
    if (head := head_of(model)) != PLAIN_HEAD:
        raise InputError(
            f"`preprocess.packing=true` packs features for a plain question answering head, but the model's is "
            f"{head}; set it to false, or `model.head={PLAIN_HEAD}`."
        )
    attention = model.config._attn_implementation
    if attention not in (_ATTENTION, _ORDINARY_ATTENTION):
        raise InputError(
            f"Packing computes attention by {_ORDINARY_ATTENTION}, but the model has "
            f"attn_implementation={attention!r}; load it with {_ORDINARY_ATTENTION!r} if it supports that, or set "
            "`preprocess.packing=false`."
        )
    model.set_attn_implementation(_ATTENTION)
    # Hooks, not a subclass: checkpoints and the columns that a trainer keeps depend on the class and its `forward`.
    packed_forward = _PackedForward()
    model.register_forward_pre_hook(packed_forward.pack_inputs, with_kwargs=True)
    model.register_forward_hook(packed_forward.unpack_outputs, with_kwargs=True)
    padding = DataCollatorWithPadding(tokenizer)
    was_training = model.training
    model.eval()
    try:
        _check_same_logits(model, tokenizer, PackingCollator(padding), max_length)
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        model.set_attn_implementation(attention)
        raise InputError(
            f"{type(model).__name__} gives packed features other logits than single features "
            f"({' '.join(str(error).split())[:200]}); set `preprocess.packing=false`, or use an encoder like BERT "
            "with a plain question answering head."
        ) from error
    finally:
        model.train(was_training)
    return PackingCollator(padding, width=getattr(model.config, "hidden_size", math.inf))


@torch.no_grad()
def _check_same_logits(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, collator: PackingCollator, max_length: int
) -> None:
    uses_types = "token_type_ids" in tokenizer.model_input_names
    # The longest feature shows whether each token sees all others (no sliding window), as packing assumes.
    features: list[dict[str, list[int]]] = []
    for length in (max_length, 5, 9, 5):
        ids = [(7 * token + length) % (model.config.vocab_size - 1) + 1 for token in range(length)]
        types = {"token_type_ids": [int(2 * token > length) for token in range(length)]} if uses_types else {}
        features.append({"input_ids": ids, "attention_mask": [1] * length, **types})
    packed: Any = model(**{name: values.to(model.device) for name, values in collator(features).items()})
    for number, feature in enumerate(features):
        single: Any = model(**{name: torch.tensor([ids], device=model.device) for name, ids in feature.items()})
        for name in ("start_logits", "end_logits"):
            logits_T = packed[name][number, : len(feature["input_ids"])]
            torch.testing.assert_close(logits_T, single[name][0], atol=_TOLERANCE, rtol=_TOLERANCE)


class _FeatureGroups:
    """The number of features of each length in a packed row, ascending; opaque to a compiler."""

    def __init__(self, lengths: list[int]) -> None:
        self.length_and_count = sorted(Counter(lengths).items())


class _PackedForward:
    """The hooks around the forward pass of one model; the first keeps the parts of a batch that the second needs."""

    def __init__(self) -> None:
        self._batch: dict[str, Tensor] | None = None

    @_disable_compile
    def pack_inputs(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        self._batch = None
        if "feature_lengths" not in kwargs:
            return None
        self._batch = kwargs
        kept: dict[str, Any] = {name: kwargs[name] for name in PackingCollator.token_columns if name in kwargs}
        if "feature_starts" not in kwargs:
            return args, {**kept, "attention_mask": kwargs["attention_mask"], "return_dict": True}
        # RoBERTa-like models number positions from the one after the id of the padding token.
        tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
        padding_idx = next((table.padding_idx for table in tables if isinstance(table, torch.nn.Embedding)), None)
        kept["position_ids"] = kwargs["position_ids"] + (0 if padding_idx is None else padding_idx + 1)
        # Models pass keywords that they do not know to the attention function.
        groups = _FeatureGroups(kwargs["feature_lengths"].tolist())
        return args, {**kept, "feature_groups": groups, "return_dict": True}

    @_disable_compile
    def unpack_outputs(
        self, model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any], output: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        batch = self._batch
        self._batch = None
        if batch is None:
            return output
        start_logits, end_logits = (_split_by_feature(output[name], batch) for name in ("start_logits", "end_logits"))
        loss = None
        starts = batch.get("start_positions")
        ends = batch.get("end_positions")
        if starts is not None and ends is not None:
            loss = model.loss_function(start_logits, end_logits, starts, ends)
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start_logits, end_logits=end_logits)


def _split_by_feature(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Return ``float [B, T]`` from the logits of a packed row, ``float [1, N]``, or of a padded batch."""
    length_B = batch["feature_lengths"]
    padding_B = batch.get("feature_padding", torch.zeros_like(length_B))
    # The place of each token in its feature without the padding on the left.
    place_BT = torch.arange(int((padding_B + length_B).max()), device=logits.device) - padding_B[:, None]
    if "feature_starts" in batch:
        index_BT = (batch["feature_starts"][:, None] + place_BT).clamp(0, logits.shape[1] - 1)
        logits = logits[0][index_BT]
    is_padding_BT = (place_BT < 0) | (place_BT >= length_B[:, None])
    return logits[:, : place_BT.shape[1]].masked_fill(is_padding_BT, _NO_TOKEN)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    feature_groups: _FeatureGroups | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend within each feature of a packed row, ``[1, H, N, D]``; use transformers' attention for other batches."""
    if feature_groups is None:
        ordinary: Any = AttentionInterface()[_ORDINARY_ATTENTION]
        return ordinary(module, query, key, value, attention_mask, **options)
    return _attention_by_length(query, key, value, feature_groups, **options), None


@_disable_compile
def _attention_by_length(
    query_1HND: Tensor,
    key_1HND: Tensor,
    value_1HND: Tensor,
    groups: _FeatureGroups,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> Tensor:
    sizes = [length * count for length, count in groups.length_and_count]
    attended = []
    for (length, count), *parts_1HND in zip(
        groups.length_and_count,
        *(states.split(sizes, dim=2) for states in (query_1HND, key_1HND, value_1HND)),
        strict=True,
    ):
        # Features of one length are a batch without padding, which needs no mask.
        query, key, value = (part[0].unflatten(1, (count, length)).transpose(0, 1) for part in parts_1HND)
        output = scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scaling)
        attended.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(attended)[None]


AttentionInterface.register(_ATTENTION, _attention)
AttentionMaskInterface.register(_ATTENTION, AttentionMaskInterface()[_ORDINARY_ATTENTION])
