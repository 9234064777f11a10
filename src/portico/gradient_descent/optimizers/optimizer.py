"""AllenNLP's names for optimizers, most of them torch's own."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import Adafactor

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.optimizers.dense_sparse_adam import DenseSparseAdam
from portico.gradient_descent.parameter_groups import NamedParameters, ParameterGroups, make_parameter_groups
from portico.gradient_descent.registry import Registrable
from portico.gradient_descent.signatures import parameters_of


class Optimizer(Registrable):
    """Registry of optimizers.

    What is registered is called with ``model_parameters``, pairs of name and parameter, or with ``params``, as the
    classes of ``torch.optim`` are, and with what the configuration says beside the type.
    """

    default_implementation = "adam"


def _register(name: str, optimizer_class: Any) -> None:
    """Register a class of torch's kind, with AllenNLP's ``parameter_groups`` in the place of ``params``."""

    def make(
        model_parameters: NamedParameters, parameter_groups: ParameterGroups | None = None, **options: Any
    ) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = optimizer_class(
            make_parameter_groups(model_parameters, parameter_groups), **options
        )
        for _, group_options in parameter_groups or ():
            _refuse_unknown_options(group_options, optimizer)
        return optimizer

    own = [parameter for key, parameter in parameters_of(make).items() if key != "options"]
    # Without annotations: torch takes lists and tuples alike, and floats where it says tensors.
    options = [
        parameter.replace(annotation=inspect.Parameter.empty, kind=inspect.Parameter.KEYWORD_ONLY)
        for key, parameter in parameters_of(optimizer_class).items()
        if key != "params"
    ]
    make.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    make.__name__ = make.__qualname__ = optimizer_class.__name__
    make.__annotations__ = {}
    Optimizer.register(name)(make)


def _refuse_unknown_options(options: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Refuse options of a parameter group that the optimizer would carry along without a look at them."""
    known = {*optimizer.defaults, "requires_grad"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ConfigurationError(
            f"A parameter group has the option `{unknown[0]}`, which {type(optimizer).__name__} does not know; it "
            f"knows: {', '.join(sorted(known))}."
        )


class HuggingfaceAdamW(torch.optim.AdamW):
    """The AdamW that transformers gave up for torch's, with the defaults and arguments it had.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of the two moments.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay.
        correct_bias: Must be true; torch always corrects the bias.

    Raises:
        ConfigurationError: If ``correct_bias`` is false.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        if not correct_bias:
            raise ConfigurationError(
                f"`correct_bias={correct_bias}` of 'huggingface_adamw' is not offered by torch's AdamW, which works "
                "here; leave it out, or give the dotted path of an optimizer of your own as the type."
            )
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


_register("adam", torch.optim.Adam)
_register("sparse_adam", torch.optim.SparseAdam)
_register("adamax", torch.optim.Adamax)
_register("adamw", torch.optim.AdamW)
_register("huggingface_adamw", HuggingfaceAdamW)
_register("huggingface_adafactor", Adafactor)
_register("adagrad", torch.optim.Adagrad)
_register("adadelta", torch.optim.Adadelta)
_register("sgd", torch.optim.SGD)
_register("rmsprop", torch.optim.RMSprop)
_register("averaged_sgd", torch.optim.ASGD)
_register("dense_sparse_adam", DenseSparseAdam)
