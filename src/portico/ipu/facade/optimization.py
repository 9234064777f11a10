"""Optimizers of programs: made from arguments, or from the user's optimizer of torch."""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from portico.contract import Facade
from portico.errors import InputError
from portico.ipu import backend

_COUNTERPARTS = {
    torch.optim.SGD: "SGD",
    torch.optim.Adam: "Adam",
    torch.optim.AdamW: "AdamW",
    torch.optim.RMSprop: "RMSprop",
}
# What a group holds that the constructor of the counterpart takes.
_HYPERPARAMETERS = {
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "Adam": ("lr", "betas", "eps", "weight_decay"),
    "AdamW": ("lr", "betas", "eps", "weight_decay"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
}
# What changes the updates of torch's optimizers, and has no counterpart.
_WITHOUT_COUNTERPART = {
    "amsgrad": "leave it out",
    "maximize": "leave it out, and let the loss be negative",
    "decoupled_weight_decay": "use `AdamW`, whose weight decay is decoupled",
    "max_grad_norm": "leave it out of the training arguments, or use SGD, Adam or AdamW",
}
_STATE_NAMES = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg")


class OptimizerMethods(Facade):
    """How the facade makes the optimizer of its program."""

    original_model: Any

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Make AdamW, or LAMB if the arguments say so, unless there is an optimizer."""
        if self.optimizer is None:
            self.optimizer = self._lamb() if self.args.uses_lamb else self._adamw()
        return self.optimizer

    def pytorch_optimizer_to_poptorch(
        self, optimizer: torch.optim.Optimizer, model: nn.Module, pipelined_model: nn.Module
    ) -> Any:
        """Return the counterpart of an optimizer of torch, with its hyperparameters and its state.

        Args:
            optimizer: SGD, Adam, AdamW or RMSprop of torch.
            model: The model whose parameters it has.
            pipelined_model: The model that is trained; parameters are matched by name.

        Raises:
            KeyError: If there is no counterpart.
            InputError: If a hyperparameter has none.
        """
        name = _COUNTERPARTS.get(type(optimizer))
        if name is None:
            raise KeyError(f"Could not find a PopTorch counterpart for optimizer {type(optimizer).__name__}")
        names = {id(parameter): own_name for own_name, parameter in model.named_parameters()}
        trained = dict(pipelined_model.named_parameters())
        keys = _HYPERPARAMETERS[name]
        groups = [
            {
                **{key: group[key] for key in ("initial_lr", *keys) if key in group},
                "params": [trained[names[id(parameter)]] for parameter in group["params"]],
            }
            for group in optimizer.param_groups
        ]
        first = {key: optimizer.param_groups[0][key] for key in keys}
        options = self._optimizer_options()
        for group in optimizer.param_groups:
            _refuse_without_counterpart(optimizer, group)
        if name == "RMSprop":
            _refuse_without_counterpart(optimizer, {"max_grad_norm": options.pop("max_grad_norm")})
        converted = getattr(backend.optim, name)(groups, **first, **_accepted(name, options))
        _carry_state(optimizer, converted, names)
        return converted

    def _take_optimizer(self, model: nn.Module) -> None:
        """Convert the user's optimizer, and bind the user's schedule to what it became."""
        if self.optimizer is None or isinstance(self.optimizer, backend.optim.Optimizer):
            return
        users, self.optimizer = self.optimizer, self.pytorch_optimizer_to_poptorch(self.optimizer, model, self.model)
        if isinstance(self.lr_scheduler, functools.partial):
            self.lr_scheduler = self.lr_scheduler(self.optimizer)
        elif getattr(self.lr_scheduler, "optimizer", None) is users:
            rebind_schedule(self.lr_scheduler, self.optimizer)

    def _adamw(self) -> Any:
        args = self.args
        decayed = set(self.get_decay_parameter_names(self.model))
        trainable = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for name, p in trainable if name in decayed], "weight_decay": args.weight_decay},
            {"params": [p for name, p in trainable if name not in decayed], "weight_decay": 0.0},
        ]
        optimizer = backend.optim.AdamW(
            groups,
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            bias_correction=False,
            **self._optimizer_options(),
        )
        optimizer.variable_attrs.markAsConstant("weight_decay")
        return optimizer

    def _lamb(self) -> Any:
        args = self.args
        decayed = set(self.get_decay_parameter_names(self.model))
        trainable = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        biases = [p for name, p in trainable if "bias" in name]
        rest = [p for name, p in trainable if name not in decayed and "bias" not in name]
        options = self._optimizer_options()
        # LAMB scales its steps by norms instead of clipping by them.
        options.pop("max_grad_norm")
        optimizer = backend.optim.LAMB(
            [
                {"params": [p for name, p in trainable if name in decayed], "weight_decay": args.weight_decay},
                {"params": biases, "weight_decay": 0.0, "max_weight_norm": 0.0},
                {"params": rest, "weight_decay": 0.0},
            ],
            lr=args.learning_rate,
            eps=args.adam_epsilon,
            bias_correction=not args.lamb_no_bias_correction,
            **options,
        )
        for name in ("weight_decay", "max_weight_norm"):
            optimizer.variable_attrs.markAsConstant(name)
        return optimizer

    def _optimizer_options(self) -> dict[str, Any]:
        dtype = torch.float32 if self.args.fp32 else torch.float16
        return {
            "loss_scaling": self.args.loss_scaling,
            "accum_type": dtype,
            "first_order_momentum_accum_type": dtype,
            "second_order_momentum_accum_type": torch.float32,
            "max_grad_norm": self.args.max_grad_norm or None,
        }

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        # The program clips, and its gradients never reach the host.
        return None

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return None


def _refuse_without_counterpart(optimizer: torch.optim.Optimizer, given: Mapping[str, Any]) -> None:
    for name, instead in _WITHOUT_COUNTERPART.items():
        # In AdamW the weight decay is decoupled always, there and here.
        is_always_so = name == "decoupled_weight_decay" and isinstance(optimizer, torch.optim.AdamW)
        if given.get(name) and not is_always_so:
            raise InputError(
                f"`{name}={given[name]!r}` of {type(optimizer).__name__} has no counterpart on IPUs; {instead}."
            )


def _accepted(name: str, options: dict[str, Any]) -> dict[str, Any]:
    if name != "SGD":
        return options
    velocity = options["first_order_momentum_accum_type"]
    kept = {key: options[key] for key in ("loss_scaling", "accum_type", "max_grad_norm")}
    return {**kept, "velocity_accum_type": velocity}


def _carry_state(optimizer: torch.optim.Optimizer, converted: Any, names: dict[int, str]) -> None:
    """Let the program start from the state that the user's optimizer has, if it has made steps."""
    state, steps = {}, 0
    for parameter, held in optimizer.state.items():
        tensors = {key: held[key] for key in _STATE_NAMES if isinstance(held.get(key), torch.Tensor)}
        if tensors:
            # A program holds the model under this name.
            state[f"model.{names[id(parameter)]}"] = tensors
            steps = max(steps, int(held.get("step", 1)))
    if state:
        converted.load_state_dict(
            {**converted.state_dict(), "ipu_state": state, "ipu_param": {"num_updates": steps, "loss_scaling": 1.0}}
        )


def rebind_schedule(scheduler: Any, optimizer: Any) -> None:
    """Let a schedule change the rates of ``optimizer``, of which it was not made."""
    scheduler.optimizer = optimizer
    step = type(optimizer).step

    @functools.wraps(step)
    def counted(*args: Any, **kwargs: Any) -> Any:
        return step(optimizer, *args, **kwargs)

    # The mark by which a schedule knows the steps of the optimizer it was made of.
    counted._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = counted
