"""What the optimizers of ``poptorch`` have beside torch's: constant attributes, loss scaling, state of the device."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    Mixed = torch.optim.Optimizer
else:
    Mixed = object

_ACCUMULATION_TYPES = (torch.float16, torch.float32)


class VariableAttributes:
    """Which attributes of an optimizer may change after compilation.

    Args:
        variable: Attributes that may.
        allowed: All attributes.
    """

    def __init__(self, variable: Iterable[str], allowed: Iterable[str]) -> None:
        self._allowed = set(allowed)
        self._variable = set(variable)
        for name in self._variable:
            self._check(name)

    def markAsConstant(self, attr: str) -> None:
        """Compile ``attr`` in."""
        self._check(attr)
        self._variable.discard(attr)

    def markAsVariable(self, attr: str) -> None:
        """Let ``attr`` be changed by ``setOptimizer``."""
        self._check(attr)
        self._variable.add(attr)

    def isConstant(self, attr: str) -> bool:
        """Return whether ``attr`` is compiled in."""
        self._check(attr)
        return attr not in self._variable

    def _check(self, attr: str) -> None:
        if attr not in self._allowed:
            raise AssertionError(f"Unknown attribute {attr}: this optimizer has {', '.join(sorted(self._allowed))}")


class Optimizer(Mixed):
    """Mixed into torch's optimizers.

    An attribute that was passed to the constructor is variable, the others are constant; ``None`` means not passed.

    Attributes:
        variable_attrs: What may change after compilation.
        loss_scaling: Factor of the loss, divided out of the gradients before they are used.
        accum_type: Format of gradient accumulators; that of the weights when ``None``.
        max_grad_norm: Norm over all weights to which gradients are clipped.
    """

    variable_attrs: VariableAttributes
    loss_scaling: float
    accum_type: torch.dtype | None
    max_grad_norm: float

    def _take_options(
        self,
        hyperparameters: Mapping[str, Any],
        *,
        loss_scaling: float | None,
        accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        **momentum_types: torch.dtype | None,
    ) -> dict[str, Any]:
        """Take what torch's optimizers do not have, and return the hyperparameters that were passed.

        Raises:
            ValueError: If a format is neither half nor single precision.
        """
        for name, dtype in {"accum_type": accum_type, **momentum_types}.items():
            if dtype not in (None, *_ACCUMULATION_TYPES):
                raise ValueError(f"`{name}={dtype}` is not supported; use torch.float16 or torch.float32.")
            setattr(self, name, dtype)
        self.loss_scaling = 1.0 if loss_scaling is None else float(loss_scaling)
        self.max_grad_norm = float("inf") if max_grad_norm is None else float(max_grad_norm)
        every = {**hyperparameters, "loss_scaling": loss_scaling, "max_grad_norm": max_grad_norm}
        self.variable_attrs = VariableAttributes(_passed(every), every)
        self._device_state: Callable[[], tuple[Any, Any] | None] | None = None
        self._pending_state: tuple[Any, Any] | None = None
        return _passed(hyperparameters)

    # State of the device

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict with the device's state in ``ipu_state`` and ``ipu_param``.

        Both are ``None`` as long as no executor has run with this optimizer.
        """
        state: dict[str, Any] = super().state_dict()
        held = self._device_state() if self._device_state is not None else self._pending_state
        state["ipu_state"], state["ipu_param"] = held or (None, None)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state that :meth:`state_dict` returned; the device gets it when it is attached or told to.

        Raises:
            RuntimeError: If it holds no state of a device.
        """
        if not {"ipu_state", "ipu_param"} <= state_dict.keys():
            raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
        if state_dict["ipu_state"] is None:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self._pending_state = (state_dict["ipu_state"], state_dict["ipu_param"])

    def connect(self, device_state: "Callable[[], tuple[Any, Any] | None] | None") -> None:
        """Let ``state_dict`` ask a device for its state; an executor calls this, with ``None`` when it ends.

        The state outlives the executor: the next that runs with this optimizer goes on from it.
        """
        if device_state is None and self._device_state is not None:
            self._pending_state = self._device_state()
        self._device_state = device_state

    def take_pending_state(self) -> tuple[Any, Any] | None:
        """Hand over a loaded state, once; an executor calls this."""
        pending, self._pending_state = self._pending_state, None
        return pending

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        # A device is not part of an optimizer; its state at this moment is.
        held = self._device_state() if self._device_state is not None else self._pending_state
        own = {name: value for name, value in self.__dict__.items() if name != "_device_state"}
        return {**own, **state, "_pending_state": held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._device_state = None


def _passed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def refuse_amsgrad(amsgrad: bool | None) -> None:
    """Refuse the variant of Adam that has no counterpart on the device.

    Raises:
        ValueError: If it is asked for.
    """
    if amsgrad:
        raise ValueError("`amsgrad=True` is not supported on IPUs; leave it out.")
