"""AllenNLP's names for optimizers, most of them torch's own."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers.optimization import Adafactor

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


def _register(name: str, optimizer_class: Any, **defaults: Any) -> None:
    """Register a class of torch's kind, with AllenNLP's ``parameter_groups`` in the place of ``params``."""

    def make(
        model_parameters: NamedParameters, parameter_groups: ParameterGroups | None = None, **options: Any
    ) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = optimizer_class(
            make_parameter_groups(model_parameters, parameter_groups), **{**defaults, **options}
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


_register("adam", torch.optim.Adam)
_register("sparse_adam", torch.optim.SparseAdam)
_register("adamax", torch.optim.Adamax)
_register("adamw", torch.optim.AdamW)
# Gone from transformers in favour of torch's class; its defaults stay.
_register("huggingface_adamw", torch.optim.AdamW, lr=1e-5, weight_decay=0.0)
_register("huggingface_adafactor", Adafactor)
_register("adagrad", torch.optim.Adagrad)
_register("adadelta", torch.optim.Adadelta)
_register("sgd", torch.optim.SGD)
_register("rmsprop", torch.optim.RMSprop)
_register("averaged_sgd", torch.optim.ASGD)
_register("dense_sparse_adam", DenseSparseAdam)
