"""PrimeQA's extractive head: a span, and what type of answer the question has."""

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from portico.errors import InputError
from portico.hf_compat import ModelOutput, RobertaClassificationHead
from portico.mrc.features.labels import TargetType
from portico.mrc.models.heads.outputs import ExtractiveQAModelOutput
from portico.mrc.models.heads.task_head import TaskHead, in_kind, one_each

_DROPOUTS = ("classifier_dropout", "hidden_dropout_prob", "classifier_dropout_prob")


class ExtractiveQAHead(TaskHead):
    """Scores each token as first and last of the answer, and the types an answer can have.

    The types are those of :class:`~portico.mrc.features.labels.TargetType`. The loss is the mean of the cross-entropies
    of start, end and type; positions beyond the row count for nothing.

    Args:
        config: Configuration of the encoder.
        num_labels_override: Number of answer types, in place of the five there are.

    Raises:
        InputError: If a token has any other number of scores (``config.num_labels``) than two.
    """

    output_class: type[ModelOutput] = ExtractiveQAModelOutput

    def __init__(self, config: PreTrainedConfig, num_labels_override: int | None = None) -> None:
        super().__init__(config)
        if config.num_labels != 2:
            raise InputError(
                "An extractive head scores each token as start and as end, which takes 2 labels, and got "
                f"{config.num_labels}; set `num_labels=2` in the configuration."
            )
        self.num_labels = config.num_labels
        self.num_classification_head_labels = len(TargetType) if num_labels_override is None else num_labels_override
        self.qa_outputs = nn.Linear(config.hidden_size, self.num_labels)
        self.classifier = RobertaClassificationHead(_classifier_shape(config, self.num_classification_head_labels))

    def forward(
        self,
        model_outputs: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        target_type: Tensor | None = None,
        **inputs: Any,
    ) -> Any:
        """Return start, end and answer type logits, with a loss where all three labels are given.

        Args:
            model_outputs: Hidden states first, ``float [B, L, H]``.
            input_ids: Input of the encoder, ``int64 [B, L]``.
            attention_mask: Likewise; 0 at padding.
            token_type_ids: Likewise.
            start_positions: First token of the answer, ``int64 [B]`` or ``[B, 1]``.
            end_positions: Last token of the answer, likewise.
            target_type: Type of the answer, likewise.
            **inputs: Not used by this head.
        """
        hidden = model_outputs[0]
        start_logits, end_logits = (logits.contiguous() for logits in self.qa_outputs(hidden).unbind(-1))
        type_logits = self.classifier(hidden)
        loss = None
        if start_positions is not None and end_positions is not None and target_type is not None:
            loss = (
                _position_loss(start_logits, start_positions)
                + _position_loss(end_logits, end_positions)
                + nn.functional.cross_entropy(type_logits, one_each(target_type))
            ) / 3
        outputs = {"start_logits": start_logits, "end_logits": end_logits, "target_type_logits": type_logits}
        if loss is None or not self.training:
            outputs |= self.confidence_features(hidden, input_ids, attention_mask, token_type_ids)
        return in_kind(model_outputs, self.output_class, loss, outputs)

    def confidence_features(
        self,
        hidden_BLH: Tensor,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
    ) -> dict[str, Tensor]:
        """Return what is added to the logits outside of training; nothing here."""
        return {}


def _position_loss(logits_BL: Tensor, positions: Tensor) -> Tensor:
    length = logits_BL.shape[1]
    return nn.functional.cross_entropy(logits_BL, one_each(positions).clamp(0, length), ignore_index=length)


def _classifier_shape(config: PreTrainedConfig, num_types: int) -> Any:
    """Return the fields that the classifier of RoBERTa reads, of the configuration of any encoder."""
    dropouts = (getattr(config, name, None) for name in _DROPOUTS)
    dropout = next((value for value in dropouts if value is not None), 0.0)
    return SimpleNamespace(
        hidden_size=config.hidden_size,
        classifier_dropout=dropout,
        hidden_dropout_prob=dropout,
        num_labels=num_types,
    )
