"""``IPUPrecision``: number formats of a program, whose backward pass and weight update are not the host's."""

from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import HalfPrecision, MixedPrecision, Precision
from torch import Tensor, nn
from typing_extensions import override

from portico.compat.annotations import Nested
from portico.compat.lightning import run_closure
from portico.compat.tree import map_tensors
from portico.errors import InputError

PrecisionName = Literal["32-true", "16-mixed", "16-true"]
PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)


class IPUPrecision(Precision):
    """Single (``"32-true"``) or half (``"16-true"``) precision throughout, or half-precision inputs only.

    With ``"16-mixed"`` weights stay in single precision. Operations on them and on results computed from
    the inputs are in half precision. No loss scaling is added: set ``loss_scaling`` of the optimizer.

    Raises:
        InputError: For any other precision.
    """

    def __init__(self, precision: PrecisionName = "32-true") -> None:
        if precision not in PRECISIONS:
            raise _build_error(precision)
        self.precision = precision

    @classmethod
    def convert(cls, plugin: Precision) -> "IPUPrecision":
        """Return the counterpart of the plugin that Lightning chose for a ``precision``."""
        if isinstance(plugin, cls):
            return plugin
        if type(plugin) not in (Precision, HalfPrecision, MixedPrecision):
            raise _build_error(str(plugin.precision))
        return cls(cast(PrecisionName, plugin.precision))

    @override
    def convert_module(self, module: nn.Module) -> nn.Module:
        return module.half() if self.precision == "16-true" else module

    @override
    def convert_input(self, data: Nested) -> Nested:
        if self.precision == "32-true":
            return data
        return map_tensors(lambda tensor: tensor.half() if tensor.dtype is torch.float32 else tensor, data)

    @override
    def backward(self, tensor: Tensor, model: nn.Module | None, *args: object, **kwargs: object) -> None:
        """Do nothing: the program contains the backward pass."""

    @override
    def optimizer_step(  # type: ignore[override]
        self, optimizer: torch.optim.Optimizer, model: pl.LightningModule, closure: Callable[[], Any], **kwargs: object
    ) -> Any:
        """Run the step, in which the program updates the weights."""
        result = run_closure(self, model, optimizer, closure)
        if result is None:
            raise InputError(
                "`training_step` returned None to skip a batch, but a program on IPUs trains on every batch; return "
                "the loss."
            )
        return result


def _build_error(precision: str) -> InputError:
    return InputError(
        f"`precision={precision!r}` is not supported on IPUs; use '32-true', '16-true' for half precision weights and "
        "activations, or '16-mixed' for half precision activations."
    )
