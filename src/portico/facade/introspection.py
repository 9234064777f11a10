"""What the facade reads off a model: its labels, and how its loss wants to be scaled."""

import inspect
import warnings
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.trainer_pt_utils import LabelSmoother
from transformers.trainer_utils import unwrap_peft_model
from transformers.utils.generic import can_return_loss, find_labels


@dataclass(frozen=True)
class ModelTraits:
    """How a model takes labels and returns losses.

    Args:
        label_names: Names of the label inputs.
        can_return_loss: Whether it returns a loss without labels (contrastive models).
        accepts_loss_kwargs: Whether its forward takes ``num_items_in_batch``.
        loss_shifts_labels: Whether its loss leaves out the first label position.
    """

    label_names: list[str]
    can_return_loss: bool
    accepts_loss_kwargs: bool
    loss_shifts_labels: bool

    @classmethod
    def of(cls, model: nn.Module, unwrapped: nn.Module, label_names: list[str] | None) -> "ModelTraits":
        """Read the traits of ``model``; ``label_names`` given by the user win.

        The base model inside PEFT's adapters speaks for them; what is inside a wrapper (``unwrapped``) says only what
        its forward takes, as in ``transformers.Trainer``.
        """
        model, unwrapped = unwrap_peft_model(model), unwrap_peft_model(unwrapped)
        parameters = inspect.signature(unwrapped.forward).parameters.values()
        takes_kwargs = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        causal = LOSS_MAPPING.get(str(getattr(model, "loss_type", None))) is ForCausalLMLoss
        return cls(
            label_names=find_labels(type(model)) if label_names is None else label_names,
            can_return_loss=bool(can_return_loss(type(model))),
            accepts_loss_kwargs=bool(getattr(unwrapped, "accepts_loss_kwargs", takes_kwargs)),
            loss_shifts_labels=causal and not is_encoder_decoder,
        )


def label_smoother(args: Any, model: nn.Module) -> LabelSmoother | None:
    """Return the smoother that ``label_smoothing_factor`` asks for, if it does and the model's problem allows it."""
    if args.label_smoothing_factor == 0:
        return None
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        warnings.warn(
            "`label_smoothing_factor` has no meaning for multi-label classification and is ignored.",
            UserWarning,
            stacklevel=3,
        )
        return None
    return LabelSmoother(epsilon=args.label_smoothing_factor)
