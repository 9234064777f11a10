"""Task heads: span extraction with answer types, the same with confidence features, and beam search.

``EXTRACTIVE_HEAD`` and its siblings are ``task_heads`` of
:meth:`~portico.mrc.models.task_model.ModelForDownstreamTasks.from_config`: head classes by head name.

Shape suffixes: B rows of a batch, L tokens, H hidden units; P and Q tokens of passage and question.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from portico.compat.transformers import (
    ModelOutput,
    RobertaClassificationHead,
    XLMSQuADHead,
    XLNetForQuestionAnsweringOutput,
)
from portico.errors import InputError
from portico.mrc.features.labels import TargetType

BEAM_OUTPUTS = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index", "cls_logits")


HeadOutput: TypeAlias = ModelOutput | tuple[Any, ...]
"""Outputs of an encoder or a head: tensors, and tuples of tensors for the layers."""


class TaskHead(nn.Module, ABC):
    """Base class of heads, made from the configuration of their encoder."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, model_outputs: HeadOutput, **inputs: Any) -> HeadOutput:
        """Return the outputs of the head: a tuple or a ``ModelOutput`` like the encoder's, with labels the loss first.

        The outputs of the encoder begin with hidden states. ``inputs`` are its inputs and the labels; the trainer
        keeps the dataset columns that the signature of a head names.
        """


@dataclass
class ExtractiveQAModelOutput(ModelOutput):
    """Output of :class:`ExtractiveQAHead`.

    Args:
        loss: Mean of three cross-entropies, a scalar; with labels.
        start_logits: Score of each token as the first of the answer, ``float [B, L]``.
        end_logits: Score of each token as the last of the answer, ``float [B, L]``.
        target_type_logits: Scores of the answer types, ``float [B, 5]``.
        hidden_states: Hidden states of all layers, if requested.
        attentions: Attentions of all layers, if requested.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    target_type_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


# Not a subclass: the order of the fields is the order of the arrays that an evaluation returns, and PrimeQA's.
@dataclass
class ExtractiveQAWithConfidenceModelOutput(ModelOutput):
    """Output of :class:`ExtractiveQAWithConfidenceHead`.

    Args:
        start_stdev: Standard deviation of each start logit under dropout, ``float [B, L]``.
        end_stdev: Standard deviation of each end logit under dropout, ``float [B, L]``.
        query_passage_similarity: Similarity of question and passage, 0 to 2, ``float [B]``.

    For the other fields see :class:`ExtractiveQAModelOutput`.
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


class ExtractiveQAHead(TaskHead):
    """Scores each token as first and last of the answer, and the types of answer.

    :class:`~portico.mrc.features.labels.TargetType` lists the types. The loss is the mean of the cross-entropies of
    start, end and type; positions beyond the row are ignored.

    The types are read off the first token, as in PrimeQA. If the configuration has a ``class_token_id``, they are read
    off the first token with that id, or the last token of a row that has none: XLNet's class token is its last, and
    padding may come first.

    Args:
        config: Configuration of the encoder.
        num_labels_override: Number of answer types; by default five.

    Raises:
        InputError: If ``config.num_labels``, the number of scores of a token, is not two.
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
        self.class_token_id: int | None = getattr(config, "class_token_id", None)
        self.num_classification_head_labels = len(TargetType) if num_labels_override is None else num_labels_override
        self.qa_outputs = nn.Linear(config.hidden_size, self.num_labels)
        # RoBERTa's classifier reads these fields; other encoders call their dropout differently, or have none.
        names = ("classifier_dropout", "hidden_dropout_prob", "classifier_dropout_prob")
        dropouts = (getattr(config, name, None) for name in names)
        dropout = next((value for value in dropouts if value is not None), 0.0)
        shape: Any = SimpleNamespace(
            hidden_size=config.hidden_size,
            classifier_dropout=dropout,
            hidden_dropout_prob=dropout,
            num_labels=self.num_classification_head_labels,
        )
        self.classifier = RobertaClassificationHead(shape)

    def forward(
        self,
        model_outputs: HeadOutput,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        target_type: Tensor | None = None,
        **inputs: Any,
    ) -> HeadOutput:
        """Return start, end and answer type logits, with a loss if all three labels are given.

        The outputs of the encoder begin with hidden states, ``float [B, L, H]``, and its inputs are ``int64 [B, L]``;
        the labels are ``int64 [B]`` or ``[B, 1]``: the first and the last token of the answer and its type.
        """
        hidden = model_outputs[0]
        start_logits, end_logits = (logits.contiguous() for logits in self.qa_outputs(hidden).unbind(-1))
        class_BH = (
            hidden[:, 0] if self.class_token_id is None else self._class_states(hidden, input_ids, attention_mask)
        )
        type_logits = self.classifier(class_BH.unsqueeze(1))  # which reads the first token
        loss = None
        if start_positions is not None and end_positions is not None and target_type is not None:
            loss = (
                _position_loss(start_logits, start_positions)
                + _position_loss(end_logits, end_positions)
                + nn.functional.cross_entropy(type_logits, _flat_labels(target_type))
            ) / 3
        outputs = {"start_logits": start_logits, "end_logits": end_logits, "target_type_logits": type_logits}
        if loss is None or not self.training:
            outputs |= self.confidence_features(hidden, input_ids, attention_mask, token_type_ids)
        return _head_output(model_outputs, self.output_class, loss, outputs)

    def _class_states(self, hidden_BLH: Tensor, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Return the hidden states of the class tokens, ``float [B, H]``."""
        shape, device = hidden_BLH.shape[:2], hidden_BLH.device
        is_real_BL = torch.ones(shape, dtype=torch.bool, device=device)
        if attention_mask is not None and attention_mask.dim() == 2:
            is_real_BL = attention_mask.bool()
        place_L = torch.arange(shape[1], device=device)
        place_B = torch.where(is_real_BL, place_L, 0).amax(dim=1)
        if input_ids is not None:
            is_class_BL = (input_ids == self.class_token_id) & is_real_BL
            place_B = torch.where(is_class_BL.any(dim=1), is_class_BL.int().argmax(dim=1), place_B)
        return hidden_BLH[torch.arange(shape[0], device=device), place_B]

    def confidence_features(
        self,
        hidden_BLH: Tensor,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
    ) -> dict[str, Tensor]:
        """Return the outputs that a subclass adds to the logits outside of training."""
        return {}


class ExtractiveQAWithConfidenceHead(ExtractiveQAHead):
    """An extractive head that returns confidence features outside of training.

    These are the standard deviation of each start and end logit over passes with dropout, and the similarity of
    question and passage. Configuration fields: ``output_dropout_rate`` (0.25), ``decoding_times_with_dropout`` (5, at
    least 2), ``sep_token_id`` (for models without token types). For the arguments see :class:`ExtractiveQAHead`.
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
        similarity_B = hidden_BLH.new_zeros(len(hidden_BLH)) if masks is None else _similarity(hidden_BLH, *masks)
        return {"start_stdev": start_stdev, "end_stdev": end_stdev, "query_passage_similarity": similarity_B}


class BeamSearchQAHead(TaskHead, XLMSQuADHead):
    """Scores starts, then ends given a start, then "no answer", as ``XLNetForQuestionAnswering`` does.

    In training it returns only a loss. Otherwise it returns the ``config.start_n_top`` (5) best starts, the
    ``config.end_n_top`` (5) best ends of each and a score for "no answer", and a loss if there are labels.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        defaults = {"start_n_top": 5, "end_n_top": 5, "layer_norm_eps": 1e-12}
        fields = {name: getattr(config, name, default) for name, default in defaults.items()}
        shape: Any = SimpleNamespace(hidden_size=config.hidden_size, **fields)
        XLMSQuADHead.__init__(self, shape)
        self.config = config
        self._most_beams = (shape.start_n_top, shape.end_n_top)

    def forward(
        self,
        model_outputs: HeadOutput,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        is_impossible: Tensor | None = None,
        cls_index: Tensor | None = None,
        p_mask: Tensor | None = None,
        **inputs: Any,
    ) -> HeadOutput:
        """Return the loss in training, else the beams.

        The outputs of the encoder begin with hidden states, ``float [B, L, H]``. The labels are the first and the last
        token of the answer, ``int64 [B]``, and ``is_impossible``, 1 if there is none, ``float [B]``; without it, "no
        answer" is not trained. ``cls_index`` is the token that represents the whole row, ``int64 [B]``, by default the
        first, and ``p_mask`` is 1 where no answer can be, ``float [B, L]``.
        """
        hidden = model_outputs[0]
        cls_index = hidden.new_zeros(len(hidden), dtype=torch.long) if cls_index is None else _flat_labels(cls_index)
        loss = None
        beams = {}
        if start_positions is not None and end_positions is not None:
            positions = _flat_labels(start_positions), _flat_labels(end_positions)
            impossible = None if is_impossible is None else _flat_labels(is_impossible).to(hidden.dtype)
            (loss,) = XLMSQuADHead.forward(self, hidden, *positions, cls_index, impossible, p_mask)
        if loss is None or not self.training:
            # transformers fails on rows with fewer tokens than beams.
            self.start_n_top, self.end_n_top = (min(most, hidden.shape[1]) for most in self._most_beams)
            values = XLMSQuADHead.forward(self, hidden, cls_index=cls_index, p_mask=p_mask)
            beams = dict(zip(BEAM_OUTPUTS, values, strict=True))
        return _head_output(model_outputs, XLNetForQuestionAnsweringOutput, loss, beams)


EXTRACTIVE_HEAD: Mapping[str, type[TaskHead]] = {"qa_head": ExtractiveQAHead}
EXTRACTIVE_WITH_CONFIDENCE_HEAD: Mapping[str, type[TaskHead]] = {"qa_head": ExtractiveQAWithConfidenceHead}
BEAM_SEARCH_HEAD: Mapping[str, type[TaskHead]] = {"qa_head": BeamSearchQAHead}

HEAD_CLASSES: Mapping[str, type[TaskHead]] = {
    head.__name__: head for head in (ExtractiveQAHead, ExtractiveQAWithConfidenceHead, BeamSearchQAHead)
}
"""Head classes by the class names that saved configurations hold."""


def question_and_passage(
    input_ids: Tensor | None, attention_mask: Tensor | None, token_type_ids: Tensor | None, sep_token_id: int | None
) -> tuple[Tensor, Tensor] | None:
    """Return masks of the tokens of the question and of the passage, ``bool [B, L]`` each.

    ``None`` if neither token types nor the separator are known. The special tokens around the question do not belong
    to it. As in PrimeQA, the separator after the passage belongs to the passage if the model has token types.
    """
    present = True if attention_mask is None else attention_mask.bool()
    if token_type_ids is not None and bool(token_type_ids.any()):
        return _strip_ends((token_type_ids == 0) & present), (token_type_ids == 1) & present
    if input_ids is None or sep_token_id is None:
        return None
    is_separator = (input_ids == sep_token_id) & present
    num_separators = is_separator.cumsum(dim=1)
    # The question ends with its separator, as it does with token types.
    is_question = (num_separators <= is_separator.long()) & present
    return _strip_ends(is_question), (num_separators > 0) & ~is_separator & present


def _strip_ends(mask_BL: Tensor) -> Tensor:
    number_BL = mask_BL.cumsum(dim=1)
    return mask_BL & (number_BL > 1) & (number_BL < number_BL[:, -1:])


def _similarity(hidden_BLH: Tensor, question_BL: Tensor, passage_BL: Tensor) -> Tensor:
    """Return the mean over the passage of each token's nearest question token: a cosine plus one, ``float [B]``."""
    directions = nn.functional.normalize(hidden_BLH, dim=-1)
    cosines_BPQ = directions @ directions.transpose(1, 2) + 1
    nearest_BP = (cosines_BPQ * question_BL[:, None, :]).amax(dim=-1)
    return (nearest_BP * passage_BL).sum(dim=1) / passage_BL.sum(dim=1).clamp(min=1)


def _position_loss(logits_BL: Tensor, positions: Tensor) -> Tensor:
    length = logits_BL.shape[1]
    # As in transformers' question answering models: a position beyond the row is clamped to its length and ignored.
    return nn.functional.cross_entropy(logits_BL, _flat_labels(positions).clamp(0, length), ignore_index=length)


def _flat_labels(labels: Tensor) -> Tensor:
    """Return labels as ``[B]``; collators may stack them to ``[B, 1]``."""
    return labels.squeeze(-1) if labels.dim() > 1 else labels


def _head_output(
    model_outputs: HeadOutput, output_class: type[ModelOutput], loss: Tensor | None, outputs: Mapping[str, Tensor]
) -> HeadOutput:
    """Return the outputs of a head: a tuple if the encoder returned a tuple, otherwise an ``output_class``."""
    if isinstance(model_outputs, tuple):
        # Hidden states and attentions of all layers are tuples; the pooled first token, a tensor, is dropped.
        of_layers = (output for output in model_outputs[1:] if not isinstance(output, Tensor))
        return (*(() if loss is None else (loss,)), *outputs.values(), *of_layers)
    return output_class(
        loss=loss,
        **outputs,
        hidden_states=getattr(model_outputs, "hidden_states", None),
        attentions=getattr(model_outputs, "attentions", None),
    )
