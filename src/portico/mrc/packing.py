"""Which row of a packed batch each feature lies in.

Shape suffix: B features of a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from portico.errors import InputError
from portico.mrc.arrays import Int64s
from portico.mrc.models.loading import PLAIN_HEAD, head_of


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the features of a batch lie.

    Attributes:
        row_B: The row of each feature, ``int64 [B]``.
        start_B: Its first token in the row, ``int64 [B]``.
        num_rows: Rows of the packed batch.
        length: Tokens of its longest row.
    """

    row_B: Int64s
    start_B: Int64s
    num_rows: int
    length: int


def pack(lengths_B: Int64s, capacity: int) -> Layout:
    """Lay features into rows, the longest first, each into the first row that has room.

    Args:
        lengths_B: Tokens of each feature, ``int64 [B]``.
        capacity: Most tokens of a row; a longer feature gets a row of its own.
    """
    row_B, start_B = np.zeros_like(lengths_B), np.zeros_like(lengths_B)
    filled: list[int] = []
    for feature in np.argsort(-lengths_B, kind="stable").tolist():
        length = int(lengths_B[feature])
        row = next((row for row, used in enumerate(filled) if used + length <= capacity), len(filled))
        if row == len(filled):
            filled.append(0)
        row_B[feature], start_B[feature] = row, filled[row]
        filled[row] += length
    return Layout(row_B, start_B, len(filled), max(filled))


_OF_TOKENS = ("input_ids", "token_type_ids")
LAYOUT_NAMES = ("feature_rows", "feature_starts", "feature_lengths")


class PackingCollator:
    """Lays the features of a batch into few rows; the batch stays the same features, and so does the training.

    The batch has ``feature_rows``, ``feature_starts`` and ``feature_lengths`` (``int64 [B]``), the features' labels
    (``int64 [B]``), and ``input_ids``, ``token_type_ids``, ``position_ids`` (from 0 in each feature) and ``segments``
    (1 and up for the features of a row, 0 on padding), ``int64 [R, L]``. A model reads it once
    :func:`~portico.mrc.packing.read_packed` was called for it.

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


_ATTENTIONS = ("eager", "sdpa")
# The logit of tokens that a feature does not have: its exponential is 0 in every precision, its sums are finite.
_NO_TOKEN = -10000.0


def read_packed(model: PreTrainedModel) -> None:
    """Let a model read the batches of :class:`~portico.mrc.packing.PackingCollator`.

    Features of a row do not see each other, and each counts its positions from the start. Start and end logits come
    back as ``float [B, T]``, and the loss is that of the features without any padding. Other batches are read as
    before; weights and ``forward`` stay as they are.

    Args:
        model: An encoder with a head that returns start and end logits.

    Raises:
        InputError: If the model's attention takes no mask of blocks.
    """
    attention = model.config._attn_implementation
    if attention not in _ATTENTIONS:
        raise InputError(
            f"Packing masks attention in blocks, which attn_implementation={attention!r} does not take; load the "
            f"model with one of {', '.join(_ATTENTIONS)}, or set `preprocess.packing=false`."
        )
    packed = _PackedForward()
    model.register_forward_pre_hook(packed.before, with_kwargs=True)
    model.register_forward_hook(packed.after, with_kwargs=True)


class _PackedForward:
    """The hooks around one model's forward; what the first takes out of a batch the second needs."""

    def __init__(self) -> None:
        self._batch: dict[str, torch.Tensor] | None = None

    def before(self, model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Turn a packed batch into what the model takes."""
        self._batch = None
        if "segments" not in kwargs:
            return None
        kept: dict[str, Any] = {name: kwargs[name] for name in ("input_ids", "token_type_ids") if name in kwargs}
        self._batch = {name: value for name, value in kwargs.items() if name not in kept}
        mask = _block_mask(kwargs["segments"], model)
        position_ids = kwargs["position_ids"] + _first_position(model)
        return args, {**kept, "position_ids": position_ids, "attention_mask": mask, "return_dict": True}

    def after(self, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Turn the logits of rows into those of features."""
        batch, self._batch = self._batch, None
        if batch is None:
            return output
        logits = [_unpacked(output[name], batch) for name in ("start_logits", "end_logits")]
        loss = None
        if batch.get("start_positions") is not None and batch.get("end_positions") is not None:
            loss = model.loss_function(*logits, batch["start_positions"], batch["end_positions"])
        return QuestionAnsweringModelOutput(loss=loss, start_logits=logits[0], end_logits=logits[1])


def _block_mask(segments_RL: torch.Tensor, model: Any) -> torch.Tensor:
    """Return which token may see which, ``[R, 1, L, L]``: bool, or what eager attention adds to its scores."""
    # Padding sees padding: a token that saw nothing at all would become NaN.
    sees = segments_RL[:, None, :, None] == segments_RL[:, None, None, :]
    if model.config._attn_implementation == "sdpa":
        return sees
    return torch.zeros(sees.shape, dtype=model.dtype, device=sees.device).masked_fill(
        ~sees, torch.finfo(model.dtype).min
    )


def _first_position(model: Any) -> int:
    """Return the position of a first token: RoBERTa and its kin begin after the number of the padding token."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def _unpacked(logits_RL: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of every feature, ``[B, T]``."""
    row_B, start_B, length_B = (batch[name] for name in LAYOUT_NAMES)
    token_T = torch.arange(int(length_B.max()), device=logits_RL.device)
    index_BT = (start_B[:, None] + token_T).clamp(max=logits_RL.shape[1] - 1)
    missing_BT = token_T >= length_B[:, None]
    return logits_RL[row_B[:, None], index_BT].masked_fill(missing_BT, _NO_TOKEN)


_TOLERANCE = 1e-3


def enable_packing(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> PackingCollator:
    """Let a model read packed batches, once it has answered three features both ways alike.

    Args:
        model: An encoder with a question answering head.
        tokenizer: Its tokenizer.
        max_length: Most tokens of a row.

    Returns:
        The collator that makes the batches.

    Raises:
        InputError: If this model cannot read packed batches.
    """
    _check_head(model)
    read_packed(model)
    uses_types = "token_type_ids" in tokenizer.model_input_names
    # The longest one shows whether tokens see all others, which the mask of blocks lets them.
    lengths = (max_length, 5, 9)
    features = [_feature(length, model.config.vocab_size, types=uses_types) for length in lengths]
    collator = PackingCollator(tokenizer, max_length)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = model(**_on_device(collator(features), model))
            for number, feature in enumerate(features):
                alone = model(**_on_device({name: torch.tensor([ids]) for name, ids in feature.items()}, model))
                for name in ("start_logits", "end_logits"):
                    torch.testing.assert_close(
                        packed[name][number, : lengths[number]], alone[name][0], atol=_TOLERANCE, rtol=_TOLERANCE
                    )
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{type(model).__name__} does not answer packed features as it answers each alone "
            f"({' '.join(str(error).split())[:200]}); set `preprocess.packing=false`, or take an encoder like BERT "
            "with a plain question answering head."
        ) from error
    finally:
        model.train(was_training)
    return collator


def _check_head(model: PreTrainedModel) -> None:
    # The loss of packed features is that of start and end logits alone.
    head = head_of(model)
    if head != PLAIN_HEAD:
        raise InputError(
            f"`preprocess.packing=true` packs features for a plain question answering head, but the model's is "
            f"{head}; set it to false, or `model.head={PLAIN_HEAD}`."
        )


def _feature(length: int, vocab_size: int, *, types: bool) -> dict[str, list[int]]:
    ids = [(7 * token + length) % (vocab_size - 1) + 1 for token in range(length)]
    feature = {"input_ids": ids, "attention_mask": [1] * length}
    return {**feature, "token_type_ids": [int(2 * token > length) for token in range(length)]} if types else feature


def _on_device(batch: dict[str, torch.Tensor], model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: values.to(model.device) for name, values in batch.items()}
