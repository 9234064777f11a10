"""A question answering model that reads packed batches and answers as if each feature had its own row.

Shape suffixes: B features of a batch, R rows, L tokens of a row, T tokens of the longest feature.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

from portico.errors import InputError
from portico.hf_compat import QuestionAnsweringModelOutput
from portico.mrc.packing.collator import LAYOUT_NAMES

_ATTENTIONS = ("eager", "sdpa")
# The logit of tokens that a feature does not have: its exponential is 0 in every precision, its sums are finite.
_NO_TOKEN = -10000.0


def read_packed(model: PreTrainedModel) -> None:
    """Let a model read the batches of :class:`~portico.mrc.packing.collator.PackingCollator`.

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
