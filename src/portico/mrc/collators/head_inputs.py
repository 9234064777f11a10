"""What the inputs of a batch tell a head beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from portico.mrc.features.labels import TargetType

Collator: TypeAlias = Callable[..., Any]


@dataclass
class TargetTypeCollator:
    """Adds ``target_type``, ``int64 [B]``, where features have positions alone: no answer, or a span.

    Args:
        tokenizer: No answer is labelled at its classification token.
        collator: Makes the batch.
    """

    tokenizer: PreTrainedTokenizerBase
    collator: Collator

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        """Return a batch with answer types."""
        batch = self.collator(features)
        if "start_positions" in batch and "target_type" not in batch:
            batch["target_type"] = torch.where(
                _lacks_answer(batch, self.tokenizer), int(TargetType.NO_ANSWER), int(TargetType.SPAN_ANSWER)
            )
        return batch


@dataclass
class BeamSearchCollator:
    """Adds what a beam-search head reads, where features do not have it.

    That is ``cls_index``, ``int64 [B]``, the place of the classification token; ``p_mask``, ``float [B, L]``, 1 where
    no answer can be; and with positions ``is_impossible``, ``float [B]``, 1 where there is no answer.

    Args:
        tokenizer: Of the features; its padding side tells whether the context is the second text or the first.
        collator: Makes the batch.
    """

    tokenizer: PreTrainedTokenizerBase
    collator: Collator

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        """Return a batch with the inputs of the head."""
        batch = self.collator([{key: row[key] for key in row if key != "p_mask"} for row in features])
        tokens_BL = batch["input_ids"]
        is_class_BL = tokens_BL == self.tokenizer.cls_token_id
        cls_index_B = is_class_BL.int().argmax(dim=1)
        batch.setdefault("cls_index", cls_index_B)
        batch["p_mask"] = 1.0 - self._can_answer(tokens_BL, cls_index_B).float()
        if "start_positions" in batch:
            batch.setdefault("is_impossible", _lacks_answer(batch, self.tokenizer))
            batch["is_impossible"] = batch["is_impossible"].float()
        return batch

    def _can_answer(self, tokens_BL: Tensor, cls_index_B: Tensor) -> Tensor:
        """Tell the tokens of the context, and the classification token that stands for "no answer"."""
        tokenizer = self.tokenizer
        names = ("cls_token_id", "sep_token_id", "pad_token_id", "bos_token_id", "eos_token_id")
        marks = {mark for mark in (getattr(tokenizer, name) for name in names) if mark is not None}
        is_text_BL = ~torch.isin(tokens_BL, torch.tensor(sorted(marks), device=tokens_BL.device))
        begins_BL = is_text_BL.clone()
        begins_BL[:, 1:] &= ~is_text_BL[:, :-1]
        number_BL = begins_BL.cumsum(dim=1)
        # An empty question leaves the context as the only text.
        context_B1 = number_BL[:, -1:].clamp(max=2 if tokenizer.padding_side == "right" else 1)
        can_answer = is_text_BL & (number_BL == context_B1)
        return can_answer.scatter(1, cls_index_B[:, None], True)


def _lacks_answer(batch: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Tensor:
    starts = batch["start_positions"].reshape(-1, 1)
    tokens: Tensor = batch["input_ids"].gather(1, starts).squeeze(1)
    return tokens == tokenizer.cls_token_id
