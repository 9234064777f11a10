"""The optimizers of ``poptorch``: usable on the host, and read by executors that update the device's weights.

Hyperparameters have torch's meanings and defaults, and are constant unless they are passed. Arguments of several
optimizers that torch's do not have:

* ``loss_scaling``: factor of the loss, divided out of the gradients before they are used;
* ``max_grad_norm``: norm over all weights to which gradients are clipped;
* ``accum_type``: format of gradient accumulators, ``torch.float16`` or ``torch.float32``; the weights' format if
  ``None``;
* ``first_order_momentum_accum_type``, ``second_order_momentum_accum_type``: formats of the moments.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from poptorch_emulator.update_rules import LambRule

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]

logger = logging.getLogger(__name__)

# State of every weight by name, and what belongs to the whole program.
DeviceState = tuple[dict[str, dict[str, Tensor]], dict[str, Any]]

# Scalars that torch's optimizers do not have, and their defaults.
_SCALARS = {"loss_scaling": 1.0, "max_grad_norm": float("inf"), "velocity_scaling": 1.0}


class VariableAttributes:
    """Which attributes of an optimizer may change after compilation."""

    def __init__(self, variable: Iterable[str], allowed: Iterable[str]) -> None:
        self._allowed = set(allowed)
        self._variable = set(variable)

    def __contains__(self, attr: str) -> bool:
        return attr in self._allowed

    def markAsConstant(self, attr: str) -> None:
        """Compile ``attr`` in."""
        self._check(attr)
        self._variable.discard(attr)

    def markAsVariable(self, attr: str) -> None:
        """Let ``setOptimizer`` change ``attr``."""
        self._check(attr)
        self._variable.add(attr)

    def isConstant(self, attr: str) -> bool:
        """Return whether ``attr`` is compiled in."""
        self._check(attr)
        return attr not in self._variable

    def _check(self, attr: str) -> None:
        if attr not in self._allowed:
            raise AssertionError(f"Unknown attribute {attr}: this optimizer has {', '.join(sorted(self._allowed))}")


class Optimizer(torch.optim.Optimizer):
    """Mixed into torch's optimizers.

    Attributes:
        variable_attrs: Which attributes may change after compilation.

    Raises:
        ValueError: If a format is neither half nor single precision, or ``amsgrad`` is set.
    """

    variable_attrs: VariableAttributes
    loss_scaling: float
    accum_type: torch.dtype | None
    max_grad_norm: float

    def _initialize(
        self,
        params: Iterable[Any],
        hyperparameters: Mapping[str, Any],
        scalars: Mapping[str, float | None],
        formats: Mapping[str, torch.dtype | None],
        **fixed: Any,
    ) -> None:
        """Initialize torch's optimizer, and store what it does not have; ``None`` means the default.

        ``fixed`` arguments of torch's optimizer cannot change after compilation.
        """
        if hyperparameters.get("amsgrad"):
            raise ValueError("`amsgrad=True` is not supported on IPUs; leave it out.")
        for name, dtype in formats.items():
            if dtype not in (None, torch.float16, torch.float32):
                raise ValueError(f"`{name}={dtype}` is not supported; use torch.float16 or torch.float32.")
            setattr(self, name, dtype)
        scalars = {"max_grad_norm": None, **scalars}
        for name, value in scalars.items():
            setattr(self, name, _SCALARS[name] if value is None else float(value))
        passed = {name: value for name, value in hyperparameters.items() if value is not None}
        # What is not passed is compiled in, so that `setOptimizer` cannot change it.
        variable = {*passed, *(name for name, value in scalars.items() if value is not None)}
        self.variable_attrs = VariableAttributes(variable, {*hyperparameters, *scalars})
        self._device_state: Callable[[], DeviceState | None] | None = None
        self._pending_state: DeviceState | None = None
        super().__init__(params, **passed, **fixed)

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict with the device's state in ``ipu_state`` and ``ipu_param``.

        Both are ``None`` until an executor has run with this optimizer.
        """
        state: dict[str, Any] = super().state_dict()
        state["ipu_state"], state["ipu_param"] = self._current_state() or (None, None)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that :meth:`state_dict` returned; the device receives it with the next call.

        Raises:
            RuntimeError: If it contains no device state.
        """
        if not {"ipu_state", "ipu_param"} <= state_dict.keys():
            raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
        if state_dict["ipu_state"] is None:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self._pending_state = (state_dict["ipu_state"], state_dict["ipu_param"])

    def connect(self, device_state: Callable[[], DeviceState | None] | None) -> None:
        """Read the device's state from an executor, which calls this; ``None`` disconnects it.

        The state outlives the executor: the next one that runs with this optimizer continues from it.
        """
        if device_state is None and self._device_state is not None:
            self._pending_state = self._device_state()
        self._device_state = device_state

    def take_pending_state(self) -> DeviceState | None:
        """Return a loaded state, once; an executor calls this."""
        pending = self._pending_state
        self._pending_state = None
        return pending

    def _current_state(self) -> DeviceState | None:
        return self._device_state() if self._device_state is not None else self._pending_state

    def __getstate__(self) -> dict[str, Any]:
        # torch pickles groups and state only. A copy holds the device's present state, but not the device.
        own = {name: value for name, value in self.__dict__.items() if name != "_device_state"}
        return {**own, **super().__getstate__(), "_pending_state": self._current_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._device_state = None


def _formats(
    accum_type: torch.dtype | None, first_order: torch.dtype, second_order: torch.dtype
) -> dict[str, torch.dtype | None]:
    return {
        "accum_type": accum_type,
        "first_order_momentum_accum_type": first_order,
        "second_order_momentum_accum_type": second_order,
    }


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent with momentum.

    Args:
        maximize: Must be false.
        foreach: Ignored.
        differentiable: Must be false.
        nesterov: Must be false in a program.
        velocity_scaling: Only stored; it matters to half-precision velocities of real devices.
        use_combined_accum: Only stored; on real devices, gradient and velocity share memory.
        velocity_accum_type: Format of the velocity.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool = False,
        foreach: bool = False,
        differentiable: bool = False,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool = False,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        if maximize or differentiable:
            raise ValueError("`maximize` and `differentiable` are not supported on IPUs; leave them out.")
        if use_combined_accum and (accum_type is not None or velocity_accum_type is not None):
            raise ValueError("`use_combined_accum=True` leaves no accumulators to choose types for; leave one out.")
        self.use_combined_accum = use_combined_accum
        self._initialize(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
            {"loss_scaling": loss_scaling, "velocity_scaling": velocity_scaling, "max_grad_norm": max_grad_norm},
            {"accum_type": accum_type, "velocity_accum_type": velocity_accum_type},
        )


class Adam(Optimizer, torch.optim.Adam):
    """Adam; weight decay is added to the gradient.

    Args:
        amsgrad: Must be false.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        self._initialize(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad},
            {"loss_scaling": loss_scaling, "max_grad_norm": max_grad_norm},
            _formats(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type),
        )


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with decoupled weight decay.

    Args:
        amsgrad: Must be false.
        bias_correction: Has no effect, which is logged once: like the latest PopTorch, the emulator corrects the bias.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool = True,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        if not bias_correction:
            _announce_bias_correction()
        self.bias_correction = bias_correction
        self._initialize(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad},
            {"loss_scaling": loss_scaling, "max_grad_norm": max_grad_norm},
            _formats(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type),
        )


@cache
def _announce_bias_correction() -> None:
    logger.warning(
        "`bias_correction=False` of AdamW has no effect: the emulator corrects the bias, as the latest PopTorch does. "
        "Releases that did not correct it start with other updates."
    )


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop, as torch or as TensorFlow computes it.

    Args:
        use_tf_variant: Compute as TensorFlow does, which adds ``eps`` inside the root.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        use_tf_variant: bool = False,
    ) -> None:
        self.use_tf_variant = use_tf_variant
        self._initialize(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
            },
            {"loss_scaling": loss_scaling},
            _formats(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type),
        )


class _TorchLAMB(torch.optim.Optimizer):
    """LAMB in the form of torch's optimizers, which do not include it."""

    _rule = LambRule({})

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        max_weight_norm: float = 65500.0,
        bias_correction: bool = True,
    ) -> None:
        scalars = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "max_weight_norm": max_weight_norm}
        for name, value in scalars.items():
            if value < 0:
                raise ValueError(f"Invalid {name}: {value} is negative; use a number of at least 0.")
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Invalid betas: {betas}; both have to be at least 0 and less than 1.")
        super().__init__(params, {**scalars, "betas": betas, "bias_correction": bias_correction})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                self._rule.update(parameter, parameter.grad, state, group, state["step"])
        return loss


class LAMB(Optimizer, _TorchLAMB):
    """Adam with steps scaled, weight by weight, to the norm of the weight.

    Args:
        weight_decay: Share of the weight that is added to the step, 0.01 by default.
        bias_correction: Correct the moments for their start at zero.
        max_weight_norm: Upper bound of the norms of weights, 65500 by default; 0 leaves the steps unscaled.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool = True,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
    ) -> None:
        self.bias_correction = bias_correction
        self._initialize(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_weight_norm": max_weight_norm},
            {"loss_scaling": loss_scaling},
            _formats(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type),
            bias_correction=bias_correction,
        )
