"""What a head asks of the other parts of a run."""

from collections.abc import Mapping
from typing import Any

from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from portico.mrc.collators.head_inputs import BeamSearchCollator, Collator, TargetTypeCollator


def head_collator(head: str, tokenizer: PreTrainedTokenizerBase, collator: Collator | None = None) -> Collator:
    """Return the collator that features of spans need for a head.

    Args:
        head: Its name, see :data:`~portico.mrc.models.loading.HEADS`.
        tokenizer: Of the features.
        collator: Makes the batches; by default it pads them.
    """
    batches: Any = DataCollatorWithPadding(tokenizer) if collator is None else collator
    kinds: Mapping[str, Any] = {
        "extractive": TargetTypeCollator,
        "extractive_with_confidence": TargetTypeCollator,
        "beam_search": BeamSearchCollator,
    }
    return kinds[head](tokenizer, batches) if head in kinds else batches


def head_post_processing(head: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of the post-processing of a head's outputs.

    Args:
        head: Its name, see :data:`~portico.mrc.models.loading.HEADS`.
        options: Options of :class:`~portico.mrc.post_processing.span_post_processing.SpanPostProcessing`.
    """
    # Beams are no logits: where no other rules were chosen, they are read by those of their own.
    reads_beams = head == "beam_search" and options.get("mode", "portico") == "portico"
    return {**options, "mode": "beam_search"} if reads_beams else options
