"""What a head is to the model it stands on."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from portico.hf_compat import ModelOutput


class TaskHead(nn.Module, ABC):
    """A head on an encoder.

    Args:
        config: Configuration of the encoder.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, model_outputs: Any, **inputs: Any) -> Any:
        """Return the outputs of the head.

        Args:
            model_outputs: What the encoder returned: hidden states first, a tuple or a ``ModelOutput``.
            **inputs: The encoder's inputs, and labels. What has a name in the signature of a head is a column of the
                data that training keeps.

        Returns:
            A tuple where the encoder returned one, else a ``ModelOutput``; the loss first where there are labels.
        """


def in_kind(
    model_outputs: Any, output_class: type[ModelOutput], loss: Tensor | None, outputs: Mapping[str, Tensor]
) -> Any:
    """Return the outputs of a head in the kind of those of its encoder: a tuple, or an ``output_class``.

    Args:
        model_outputs: What the encoder returned; hidden states and attentions of all layers are passed on.
        output_class: Has ``loss``, ``hidden_states``, ``attentions`` and the names of ``outputs``.
        loss: A scalar, or ``None`` without labels.
        outputs: What the head returns beside the loss.
    """
    if isinstance(model_outputs, tuple):
        return (*(() if loss is None else (loss,)), *outputs.values(), *_of_all_layers(model_outputs))
    return output_class(
        loss=loss,
        **outputs,
        hidden_states=getattr(model_outputs, "hidden_states", None),
        attentions=getattr(model_outputs, "attentions", None),
    )


def _of_all_layers(model_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the hidden states and attentions, which are tuples; a pooled first token is a tensor like the states."""
    return tuple(output for output in model_outputs[1:] if not isinstance(output, Tensor))


def one_each(labels: Tensor) -> Tensor:
    """Return labels of one for each row as ``[B]``, also where a collator made ``[B, 1]`` of them."""
    return labels.squeeze(-1) if labels.dim() > 1 else labels
