"""What the optimizers of ``poptorch`` have beside torch's: constant attributes, loss scaling, state of the device."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from poptorch_emulator.update_rules import LambRule

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
        """Tell whether ``attr`` is compiled in."""
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


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent with momentum.

    Args:
        params: Parameters or groups.
        lr: Learning rate.
        momentum: Share of the velocity that stays.
        dampening: Share of the gradient that is left out of the velocity.
        weight_decay: L2 penalty.
        nesterov: Look ahead along the velocity.
        maximize: Must be false.
        foreach: Without effect.
        differentiable: Must be false.
        loss_scaling: Factor of the loss.
        velocity_scaling: Kept; it matters to half-precision velocities of real devices only.
        use_combined_accum: Kept; gradient and velocity share memory on real devices.
        accum_type: Format of gradient accumulators.
        velocity_accum_type: Format of the velocity.
        max_grad_norm: Norm to clip gradients to.
    """

    def __init__(
        self,
        params: Any,
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
        self.velocity_scaling = 1.0 if velocity_scaling is None else velocity_scaling
        passed = self._take_options(
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "velocity_scaling": velocity_scaling,
            },
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            max_grad_norm=max_grad_norm,
            velocity_accum_type=velocity_accum_type,
        )
        passed.pop("velocity_scaling", None)
        torch.optim.SGD.__init__(self, params, **passed)


class Adam(Optimizer, torch.optim.Adam):
    """Adam; weight decay goes into the gradient.

    Args:
        params: Parameters or groups.
        lr: Learning rate, 1e-3 by default; constant unless passed.
        betas: Decay of both moments.
        eps: Added to the denominator.
        weight_decay: L2 penalty.
        amsgrad: Must be false.
        loss_scaling: Factor of the loss.
        accum_type: Format of gradient accumulators.
        first_order_momentum_accum_type: Format of the first moment.
        second_order_momentum_accum_type: Format of the second moment.
        max_grad_norm: Norm to clip gradients to.
    """

    def __init__(
        self,
        params: Any,
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
        refuse_amsgrad(amsgrad)
        passed = self._take_options(
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad},
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            max_grad_norm=max_grad_norm,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        torch.optim.Adam.__init__(self, params, **passed)


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with weight decay beside the gradient.

    Args:
        params: Parameters or groups.
        lr: Learning rate, 1e-3 by default; constant unless passed.
        betas: Decay of both moments.
        eps: Added to the denominator.
        weight_decay: Share of the weights taken off, times the learning rate; 0.01 by default.
        amsgrad: Must be false.
        loss_scaling: Factor of the loss.
        bias_correction: Without effect: real devices correct the bias always, and so does the emulator.
        accum_type: Format of gradient accumulators.
        first_order_momentum_accum_type: Format of the first moment.
        second_order_momentum_accum_type: Format of the second moment.
        max_grad_norm: Norm to clip gradients to.
    """

    def __init__(
        self,
        params: Any,
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
        refuse_amsgrad(amsgrad)
        self.bias_correction = bias_correction
        passed = self._take_options(
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad},
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            max_grad_norm=max_grad_norm,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        torch.optim.AdamW.__init__(self, params, **passed)


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop, as torch or as TensorFlow computes it.

    Args:
        params: Parameters or groups.
        lr: Learning rate, 1e-2 by default; constant unless passed.
        alpha: Decay of the mean square.
        eps: Added to the denominator; inside the root in TensorFlow's variant.
        weight_decay: L2 penalty.
        momentum: Share of the velocity that stays.
        centered: Divide by the standard deviation.
        loss_scaling: Factor of the loss.
        accum_type: Format of gradient accumulators.
        first_order_momentum_accum_type: Format of velocity and mean gradient.
        second_order_momentum_accum_type: Format of the mean square.
        use_tf_variant: Compute as TensorFlow.
    """

    def __init__(
        self,
        params: Any,
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
        passed = self._take_options(
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
            },
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        torch.optim.RMSprop.__init__(self, params, **passed)


_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "max_weight_norm": 65500.0}
_RULE = LambRule()


class LAMB(Optimizer, torch.optim.Optimizer):
    """Adam whose steps are scaled, weight by weight, to the norm of the weight.

    Args:
        params: Parameters or groups.
        lr: Learning rate, 1e-3 by default; constant unless passed.
        betas: Decay of both moments.
        eps: Added to the denominator.
        weight_decay: Added to the step, times the weight.
        bias_correction: Correct the moments for their start at zero.
        loss_scaling: Factor of the loss.
        max_weight_norm: Norms of weights are cut here; 65500 by default, 0 leaves the steps unscaled.
        accum_type: Format of gradient accumulators.
        first_order_momentum_accum_type: Format of the first moment.
        second_order_momentum_accum_type: Format of the second moment.
    """

    def __init__(
        self,
        params: Any,
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
        passed = self._take_options(
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_weight_norm": max_weight_norm},
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        options = {**_DEFAULTS, **passed}
        for name in ("lr", "eps", "weight_decay", "max_weight_norm"):
            if options[name] < 0:
                raise ValueError(f"Invalid {name}: {options[name]} is negative; use a number of at least 0.")
        if not all(0.0 <= beta < 1.0 for beta in options["betas"]):
            raise ValueError(f"Invalid betas: {options['betas']}; both have to be at least 0 and less than 1.")
        self.bias_correction = bias_correction
        super().__init__(params, {**options, "bias_correction": bias_correction})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; return what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + 1
        assert parameter.grad is not None
        _RULE.update(parameter, parameter.grad, state, group, state["step"])
