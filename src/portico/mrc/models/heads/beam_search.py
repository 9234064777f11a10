"""XLNet's head for any encoder: ends are searched for each of the best starts."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from portico.hf_compat import (
    XLNetForQuestionAnsweringOutput,
    XLNetPoolerAnswerClass,
    XLNetPoolerEndLogits,
    XLNetPoolerStartLogits,
)
from portico.mrc.models.heads.task_head import TaskHead, in_kind, one_each

BEAM_OUTPUTS = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index", "cls_logits")


class BeamSearchQAHead(TaskHead):
    """Scores starts, then ends given a start, then whether there is no answer, as ``XLNetForQuestionAnswering`` does.

    In training it returns a loss alone. Otherwise it returns the ``config.start_n_top`` (5) best starts, the
    ``config.end_n_top`` (5) best ends of each and a score for "no answer", and a loss where there are labels.

    Args:
        config: Configuration of the encoder.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.start_n_top = int(getattr(config, "start_n_top", 5))
        self.end_n_top = int(getattr(config, "end_n_top", 5))
        shape: Any = SimpleNamespace(
            hidden_size=config.hidden_size, layer_norm_eps=getattr(config, "layer_norm_eps", 1e-12)
        )
        self.start_logits = XLNetPoolerStartLogits(shape)
        self.end_logits = XLNetPoolerEndLogits(shape)
        self.answer_class = XLNetPoolerAnswerClass(shape)

    def forward(
        self,
        model_outputs: Any,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        is_impossible: Tensor | None = None,
        cls_index: Tensor | None = None,
        p_mask: Tensor | None = None,
        **inputs: Any,
    ) -> Any:
        """Return the loss in training, else the beams.

        Args:
            model_outputs: Hidden states first, ``float [B, L, H]``.
            start_positions: First token of the answer, ``int64 [B]``.
            end_positions: Last token of the answer, likewise.
            is_impossible: 1 where there is no answer, ``float [B]``; without it that is not learnt.
            cls_index: Token that stands for the whole row, ``int64 [B]``; by default the first.
            p_mask: 1 where no answer can be, ``float [B, L]``.
            **inputs: Not used by this head.
        """
        hidden = model_outputs[0]
        first = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
        cls_index = first if cls_index is None else one_each(cls_index)
        start_logits = self.start_logits(hidden, p_mask=p_mask)
        loss = None
        if start_positions is not None and end_positions is not None:
            starts, ends = one_each(start_positions), one_each(end_positions)
            loss = self._span_loss(hidden, start_logits, starts, ends, p_mask)
            if is_impossible is not None:
                scores = self.answer_class(hidden, start_positions=starts, cls_index=cls_index)
                # Half the weight, so that the scale is that of the two positions.
                wanted = one_each(is_impossible).to(scores.dtype)
                loss = loss + 0.5 * nn.functional.binary_cross_entropy_with_logits(scores, wanted)
        beams = {} if self.training and loss is not None else self._beams(hidden, start_logits, cls_index, p_mask)
        return in_kind(model_outputs, XLNetForQuestionAnsweringOutput, loss, beams)

    def _span_loss(
        self, hidden: Tensor, start_logits: Tensor, starts: Tensor, ends: Tensor, p_mask: Tensor | None
    ) -> Tensor:
        end_logits = self.end_logits(hidden, start_positions=starts, p_mask=p_mask)
        start_loss = nn.functional.cross_entropy(start_logits, starts)
        return (start_loss + nn.functional.cross_entropy(end_logits, ends)) / 2

    def _beams(
        self, hidden_BLH: Tensor, start_logits_BL: Tensor, cls_index_B: Tensor, p_mask_BL: Tensor | None
    ) -> dict[str, Tensor]:
        num_rows, length, size = hidden_BLH.shape
        num_starts, num_ends = min(self.start_n_top, length), min(self.end_n_top, length)
        start_probs_BL = start_logits_BL.softmax(dim=-1)
        start_top, start_index_BS = start_probs_BL.topk(num_starts, dim=-1)
        states_BSH = hidden_BLH.gather(-2, start_index_BS[..., None].expand(-1, -1, size))
        end_logits_BLS = self.end_logits(
            hidden_BLH[:, :, None].expand(-1, -1, num_starts, -1),
            start_states=states_BSH[:, None].expand(-1, length, -1, -1),
            p_mask=None if p_mask_BL is None else p_mask_BL[..., None],
        )
        end_top_BES, end_index_BES = end_logits_BLS.softmax(dim=1).topk(num_ends, dim=1)
        expected_BH = torch.einsum("blh,bl->bh", hidden_BLH, start_probs_BL)
        values = (
            start_top,
            start_index_BS,
            end_top_BES.reshape(num_rows, -1),
            end_index_BES.reshape(num_rows, -1),
            self.answer_class(hidden_BLH, start_states=expected_BH, cls_index=cls_index_B),
        )
        return dict(zip(BEAM_OUTPUTS, values, strict=True))
