"""What AllenNLP's trainer does on the host, and a program on IPUs leaves no room for."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from portico.gradient_descent.errors import ConfigurationError

# What AllenNLP does on the host between the backward pass and the update, which a program does not leave.
_HOST_SIDE = {
    "grad_norm": "give the optimizer `max_grad_norm`, with one of `portico.ipu.backend.optim`",
    "grad_clipping": "clip by the norm, with `max_grad_norm` of an optimizer of `portico.ipu.backend.optim`",
    "moving_average": "leave it out, and average the weights of the last checkpoints after the run",
}
_ON_THE_MODEL = {
    "get_regularization_penalty": "add the penalty to the loss in `forward`",
    "get_metrics": "return from `forward` what is to be counted, and count it in a batch callback",
}
_SPREAD = ("devices", "num_nodes", "cuda_device", "distributed")


def refuse_host_side(model: nn.Module, options: Mapping[str, Any]) -> None:
    """Refuse what would work on the host in the middle of a step.

    Args:
        model: The model.
        options: As of ``GradientDescentTrainer``.

    Raises:
        ConfigurationError: Names it, and what to do instead.
    """
    for name, instead in _HOST_SIDE.items():
        if options.get(name) is not None and options[name] is not False:
            raise ConfigurationError(
                f"`{name}` works on the host after every backward pass, but on IPUs a program makes the whole step; "
                f"{instead}."
            )
    for name, instead in _ON_THE_MODEL.items():
        if hasattr(model, name):
            raise ConfigurationError(
                f"{type(model).__name__} has `{name}`, which needs Python to run in every step, but on IPUs it runs "
                f"only to compile the program; {instead}."
            )
    if options.get("num_gradient_accumulation_steps", 1) != 1:
        raise ConfigurationError(
            f"`num_gradient_accumulation_steps={options['num_gradient_accumulation_steps']}` accumulates on the host; "
            "set `gradient_accumulation_steps` of `ipu_config`, and let `data_loader` give the rows of all "
            "micro-batches."
        )
    for name in _SPREAD:
        if options.get(name):
            raise ConfigurationError(
                f"`{name}={options[name]!r}` does not choose IPUs; set `replication_factor` and `layers_per_ipu` of "
                "`ipu_config`."
            )
    for name in ("accelerator", "strategy"):
        if options.get(name) not in (None, "ipu"):
            raise ConfigurationError(
                f"`{name}={options[name]!r}` is not that of IPUs; leave it out, or use `GradientDescentTrainer`."
            )
