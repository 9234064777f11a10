"""What a head asks of the other parts of a run."""

from collections.abc import Mapping
from typing import Any

from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from portico.errors import InputError
from portico.mrc.collators.head_inputs import BeamSearchCollator, Collator, TargetTypeCollator
from portico.mrc.models.loading import HEADS, PLAIN_HEAD
from portico.mrc.postprocess.ranking import SupportedSpanScorers


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
        options: Options of :class:`~portico.mrc.postprocess.span_postprocessing.SpanPostProcessing`.

    Raises:
        InputError: If the head does not give what the mode reads.
    """
    mode = options.get("mode", "portico")
    gives_beams, reads_beams = head == "beam_search", mode == "beam_search"
    if head in (PLAIN_HEAD, *HEADS) and mode != "portico" and gives_beams != reads_beams:
        raise InputError(
            f"`postprocess.mode={mode}` reads {'beams' if reads_beams else 'logits'}, which the model's head, {head}, "
            f"does not give; set the mode to {'beam_search' if gives_beams else 'portico'}, or take another "
            "`model.head`."
        )
    scorer = options.get("scorer_type", SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF)
    if mode == "primeqa" and head == PLAIN_HEAD and scorer != SupportedSpanScorers.SCORE_DIFF_BASED:
        raise InputError(
            f"`postprocess.mode=primeqa` ranks spans by {scorer}, which weighs the kind of answer, but the model's "
            f"head, {head}, does not classify it; set `model.head=extractive`, or `postprocess.scorer_type="
            f"{SupportedSpanScorers.SCORE_DIFF_BASED}`."
        )
    # Beams are no logits: where no other rules were chosen, they are read by those of their own.
    return {**options, "mode": "beam_search"} if gives_beams else options
