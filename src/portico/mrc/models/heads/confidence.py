"""The extractive head with what a confidence can be told from."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from portico.errors import InputError
from portico.mrc.models.heads.extractive import ExtractiveQAHead
from portico.mrc.models.heads.outputs import ExtractiveQAWithConfidenceModelOutput


class ExtractiveQAWithConfidenceHead(ExtractiveQAHead):
    """An extractive head that says, outside of training, how sure its scores are.

    It adds the standard deviation of each start and end logit over passes with dropout, and the similarity of
    question and passage. The configuration says how: ``output_dropout_rate`` (0.25), ``decoding_times_with_dropout``
    (5), ``sep_token_id`` (where there are no token types).

    Args:
        config: Configuration of the encoder.
        num_labels_override: See :class:`~portico.mrc.models.heads.extractive.ExtractiveQAHead`.

    Raises:
        InputError: If there are fewer than two passes, which have no deviation.
    """

    output_class = ExtractiveQAWithConfidenceModelOutput

    def __init__(self, config: PreTrainedConfig, num_labels_override: int | None = None) -> None:
        super().__init__(config, num_labels_override)
        self.dropout_rate = float(getattr(config, "output_dropout_rate", 0.25))
        self.num_passes = int(getattr(config, "decoding_times_with_dropout", 5))
        if self.num_passes < 2:
            raise InputError(
                f"`decoding_times_with_dropout={self.num_passes}` passes have no standard deviation; set it to 2 or "
                "more in the configuration."
            )

    def confidence_features(
        self,
        hidden_BLH: Tensor,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
    ) -> dict[str, Tensor]:
        """Return ``start_stdev`` and ``end_stdev``, ``float [B, L]``, and ``query_passage_similarity``, ``[B]``."""
        passes = [
            self.qa_outputs(nn.functional.dropout(hidden_BLH, self.dropout_rate, training=True))
            for _ in range(self.num_passes)
        ]
        start_stdev, end_stdev = (stdev.contiguous() for stdev in torch.stack(passes).std(dim=0).unbind(-1))
        separator = getattr(self.config, "sep_token_id", None)
        masks = question_and_passage(input_ids, attention_mask, token_type_ids, sep_token_id=separator)
        return {
            "start_stdev": start_stdev,
            "end_stdev": end_stdev,
            "query_passage_similarity": (
                hidden_BLH.new_zeros(len(hidden_BLH)) if masks is None else _similarity(hidden_BLH, *masks)
            ),
        }


def question_and_passage(
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    sep_token_id: int | None,
) -> tuple[Tensor, Tensor] | None:
    """Tell the tokens of the question and those of the passage, ``bool [B, L]`` each.

    The special tokens around the question are no part of it. As in PrimeQA, the separator at the end of the passage
    is part of that where token types tell the two apart.

    Args:
        input_ids: Tokens, ``int64 [B, L]``.
        attention_mask: 0 at padding, ``[B, L]``.
        token_type_ids: 0 for the question and 1 for the passage, where the model knows types.
        sep_token_id: The token between both, where it does not.

    Returns:
        ``None`` if nothing tells them apart.
    """
    if token_type_ids is not None and bool(token_type_ids.any()):
        present = torch.ones_like(token_type_ids) if attention_mask is None else attention_mask
        return _inner((token_type_ids == 0) & present.bool()), (token_type_ids == 1) & present.bool()
    if input_ids is None or sep_token_id is None:
        return None
    present = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    is_separator = (input_ids == sep_token_id) & present.bool()
    num_separators = is_separator.cumsum(dim=1)
    # Its separator is the last token of the question, as where token types tell.
    is_question = present.bool() & (num_separators <= is_separator.long())
    return _inner(is_question), present.bool() & (num_separators > 0) & ~is_separator


def _inner(part_BL: Tensor) -> Tensor:
    """Leave out the first and the last token of a part."""
    number_BL = part_BL.cumsum(dim=1)
    return part_BL & (number_BL > 1) & (number_BL < number_BL[:, -1:])


def _similarity(hidden_BLH: Tensor, question_BL: Tensor, passage_BL: Tensor) -> Tensor:
    """Return the mean over the passage of each token's nearest question token: a cosine plus one, ``float [B]``."""
    directions = nn.functional.normalize(hidden_BLH, dim=-1)
    cosines_BPQ = directions @ directions.transpose(1, 2) + 1
    nearest_BP = (cosines_BPQ * question_BL[:, None, :]).amax(dim=-1)
    return (nearest_BP * passage_BL).sum(dim=1) / passage_BL.sum(dim=1).clamp(min=1)
