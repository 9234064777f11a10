"""What the extractive heads return."""

from dataclasses import dataclass

from torch import Tensor

from portico.hf_compat import ModelOutput


@dataclass
class ExtractiveQAModelOutput(ModelOutput):
    """Output of :class:`~portico.mrc.models.heads.extractive.ExtractiveQAHead`.

    Args:
        loss: Mean of three cross-entropies, a scalar; with labels.
        start_logits: Score of each token as the first of the answer, ``float [B, L]``.
        end_logits: Score of each token as the last of the answer, ``float [B, L]``.
        target_type_logits: Scores of the answer types, ``float [B, 5]``.
        hidden_states: Of all layers, if asked for.
        attentions: Of all layers, if asked for.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    target_type_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class ExtractiveQAWithConfidenceModelOutput(ModelOutput):
    """Output of :class:`~portico.mrc.models.heads.confidence.ExtractiveQAWithConfidenceHead`.

    Args:
        loss: See :class:`ExtractiveQAModelOutput`, like what is not described here.
        start_logits: See there.
        end_logits: See there.
        target_type_logits: See there.
        start_stdev: How far each start logit varies under dropout, ``float [B, L]``.
        end_stdev: The same of the end logits, ``float [B, L]``.
        query_passage_similarity: How near the passage is to the question, 0 to 2, ``float [B]``.
        hidden_states: See there.
        attentions: See there.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    target_type_logits: Tensor | None = None
    start_stdev: Tensor | None = None
    end_stdev: Tensor | None = None
    query_passage_similarity: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
