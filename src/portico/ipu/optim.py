"""Optimizers of torch, made optimizers of programs."""

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.pipelining.serialization import parts_of_parameters, whole_parameters

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


class OptimizerConversion:
    """Converts optimizers of one model's parameters to those of the model that is trained, by name.

    A weight in pieces is replaced by the pieces.

    Args:
        model: The model whose parameters optimizers have.
        trained: The model that is trained.
    """

    def __init__(self, model: nn.Module, trained: nn.Module) -> None:
        self._names: dict[int, str] = {}
        for name, parameter in whole_parameters(model):
            self._names.setdefault(id(parameter), name)
        self._parts = parts_of_parameters(trained)
        self._trained = dict(trained.named_parameters(remove_duplicate=False))

    def counterpart(self, optimizer: torch.optim.Optimizer, options: Mapping[str, Any]) -> Any:
        """Return the counterpart of an optimizer of torch, with its hyperparameters and its state.

        Args:
            optimizer: SGD, Adam, AdamW or RMSprop of torch.
            options: Number formats and loss scaling of the counterpart.

        Raises:
            KeyError: If there is no counterpart.
            InputError: If a hyperparameter has none.
        """
        name = _COUNTERPARTS.get(type(optimizer))
        if name is None:
            raise KeyError(f"Could not find a PopTorch counterpart for optimizer {type(optimizer).__name__}")
        keys = _HYPERPARAMETERS[name]
        groups = [
            {
                **{key: group[key] for key in ("initial_lr", *keys) if key in group},
                "params": self.trained_parameters(group["params"]),
            }
            for group in optimizer.param_groups
        ]
        first = {key: optimizer.param_groups[0][key] for key in keys}
        for group in optimizer.param_groups:
            _refuse_without_counterpart(optimizer, group)
        converted = getattr(backend.optim, name)(groups, **first, **_accepted(name, optimizer, options))
        self._carry_state(optimizer, converted)
        return converted

    def trained_parameters(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters that are trained for these.

        Raises:
            InputError: If one is not the model's.
        """
        if any(id(parameter) not in self._names for parameter in parameters):
            raise InputError(
                "The optimizer has parameters that are not of the `model` that the trainer was given; make it of "
                "`model.parameters()`."
            )
        names = [part for one in parameters for part, _ in self._parts[self._names[id(one)]]]
        return [self._trained[name] for name in names]

    def _carry_state(self, optimizer: torch.optim.Optimizer, converted: Any) -> None:
        """Let the program start from the state that the user's optimizer has, if it has made steps."""
        state, steps = {}, 0
        for parameter, held in optimizer.state.items():
            tensors = {key: held[key] for key in _STATE_NAMES if isinstance(held.get(key), torch.Tensor)}
            if not tensors:
                continue
            steps = max(steps, int(held.get("step", 1)))
            for part, rows in self._parts[self._names[id(parameter)]]:
                state[f"{PROGRAM_PREFIX}{part}"] = {key: tensor[rows] for key, tensor in tensors.items()}
        if state:
            converted.load_state_dict(
                {
                    **converted.state_dict(),
                    "ipu_state": state,
                    "ipu_param": {"num_updates": steps, "loss_scaling": 1.0},
                }
            )


def _refuse_without_counterpart(optimizer: torch.optim.Optimizer, given: Mapping[str, Any]) -> None:
    for name, instead in _WITHOUT_COUNTERPART.items():
        # In AdamW the weight decay is decoupled always, there and here.
        is_always_so = name == "decoupled_weight_decay" and isinstance(optimizer, torch.optim.AdamW)
        if given.get(name) and not is_always_so:
            raise InputError(
                f"`{name}={given[name]!r}` of {type(optimizer).__name__} has no counterpart on IPUs; {instead}."
            )


def _accepted(name: str, optimizer: torch.optim.Optimizer, options: Mapping[str, Any]) -> dict[str, Any]:
    if name == "RMSprop":
        _refuse_without_counterpart(optimizer, {"max_grad_norm": options["max_grad_norm"]})
        return {key: value for key, value in options.items() if key != "max_grad_norm"}
    if name != "SGD":
        return dict(options)
    kept = {key: options[key] for key in ("loss_scaling", "accum_type", "max_grad_norm")}
    return {**kept, "velocity_accum_type": options["first_order_momentum_accum_type"]}


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


# A piece of a weight, and the group of replicas that the state belongs to.
_PIECE = re.compile(r"(?P<module>.+)\.pieces\.(?P<number>\d+)\.(?P<kind>weight|bias)(?P<group>\[\d+\])?")
_GROUP = re.compile(r"(?P<name>.+?)(?P<group>\[\d+\])?")
# A program holds the model under this name.
PROGRAM_PREFIX = "model."

WeightState = Mapping[str, Tensor]


def recut(state: Mapping[str, Any], optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of a saved optimizer for a model whose weights may be in other pieces than when it was saved.

    Args:
        state: What ``state_dict`` of an optimizer of ``poptorch.optim`` returned, from any model with these weights.
        optimizer: The one that is to go on from it.
        model: The model, in its present pieces.
    """
    saved = state.get("ipu_state")
    if not saved:
        return dict(state)
    parts = parts_of_parameters(model)
    present: dict[str, WeightState] = {}
    for name, whole in _joined(saved).items():
        group = _GROUP.fullmatch(name)
        assert group is not None
        weight, suffix = group["name"].removeprefix(PROGRAM_PREFIX), group["group"] or ""
        if weight not in parts:
            present[name] = whole
            continue
        for part, rows in parts[weight]:
            present[f"{PROGRAM_PREFIX}{part}{suffix}"] = {key: value[rows].clone() for key, value in whole.items()}
    groups = _with_members_of(optimizer, state["param_groups"])
    return {**state, "ipu_state": present, "param_groups": groups}


def _joined(state: Mapping[str, WeightState]) -> dict[str, WeightState]:
    """Return the state of whole weights by name."""
    pieces: dict[str, list[tuple[int, WeightState]]] = defaultdict(list)
    whole: dict[str, WeightState] = {}
    for name, held in state.items():
        piece = _PIECE.fullmatch(name)
        if piece is None:
            whole[name] = held
        else:
            weight = f"{piece['module']}.{piece['kind']}{piece['group'] or ''}"
            pieces[weight].append((int(piece["number"]), held))
    for weight, numbered in pieces.items():
        ordered = [held for _, held in sorted(numbered, key=lambda pair: pair[0])]
        whole[weight] = {key: torch.cat([held[key] for held in ordered]) for key in ordered[0]}
    return whole


def _with_members_of(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return saved groups with as many members as those of ``optimizer`` have, where there are as many groups."""
    present = optimizer.state_dict()["param_groups"]
    if len(present) != len(groups):
        return groups
    return [{**saved, "params": own["params"]} for saved, own in zip(groups, present, strict=True)]
