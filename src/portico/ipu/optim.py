"""Optimizers of programs: made from arguments, converted from torch's, and loaded from checkpoints."""

import functools
import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.pipelining.serialization import parts_of_parameters, whole_parameters

if TYPE_CHECKING:
    from portico.ipu.arguments import IPUTrainingArguments

logger = logging.getLogger(__name__)

# `DeviceProgram` holds the model under this name, so names in the optimizer's state begin with it.
_PROGRAM_PREFIX = "model."


# ---- Made from arguments ----


def make_optimizer(model: nn.Module, args: "IPUTrainingArguments", decayed: set[str]) -> Any:
    """Return AdamW, or LAMB if the arguments say so, with weight decay for the parameters named in ``decayed``."""
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [{"params": [param for name, param in trainable if name in decayed], "weight_decay": args.weight_decay}]
    without = [(name, param) for name, param in trainable if name not in decayed]
    options = {**optimizer_options(args), "lr": args.learning_rate, "eps": args.adam_epsilon}
    constants = ["weight_decay"]
    # Bias correction, and weight decay compiled in as a constant, are as in optimum-graphcore.
    if args.uses_lamb:
        # LAMB scales its steps by norms instead of clipping by them.
        del options["max_grad_norm"]
        options["bias_correction"] = not args.lamb_no_bias_correction
        biases = [param for name, param in without if "bias" in name]
        groups.append({"params": biases, "weight_decay": 0.0, "max_weight_norm": 0.0})
        without = [(name, param) for name, param in without if "bias" not in name]
        constants.append("max_weight_norm")
    else:
        options |= {"betas": (args.adam_beta1, args.adam_beta2), "bias_correction": False}
    groups.append({"params": [param for _, param in without], "weight_decay": 0.0})
    optimizer = (backend.optim.LAMB if args.uses_lamb else backend.optim.AdamW)(groups, **options)
    for name in constants:
        optimizer.variable_attrs.markAsConstant(name)
    return optimizer


def optimizer_options(args: "IPUTrainingArguments") -> dict[str, Any]:
    """Return number formats, loss scaling and clipping of an optimizer."""
    dtype = torch.float32 if args.fp32 else torch.float16
    return {
        "loss_scaling": args.loss_scaling,
        "accum_type": dtype,
        "first_order_momentum_accum_type": dtype,
        "second_order_momentum_accum_type": torch.float32,
        "max_grad_norm": args.max_grad_norm or None,
    }


# ---- Converted from torch's ----

# Optimizers that poptorch has too, and the keys of a parameter group that its constructors take.
_HYPERPARAMETERS: Mapping[type, tuple[str, ...]] = {
    torch.optim.SGD: ("lr", "momentum", "dampening", "weight_decay"),
    torch.optim.Adam: ("lr", "betas", "eps", "weight_decay"),
    torch.optim.AdamW: ("lr", "betas", "eps", "weight_decay"),
    torch.optim.RMSprop: ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
}
# Options of torch's optimizers that change the updates and do not exist in poptorch.
_WITHOUT_COUNTERPART = {
    "amsgrad": "leave it out",
    "maximize": "leave it out, and negate the loss",
    "nesterov": "leave it out",
    "decoupled_weight_decay": "use `AdamW`, whose weight decay is decoupled",
}
_STATE_NAMES = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg")


class OptimizerConversion:
    """Converts optimizers of a model into optimizers of the copy that is trained.

    Parameters are matched by name; a weight that is cut into pieces is replaced by the pieces.
    """

    def __init__(self, model: nn.Module, trained: nn.Module) -> None:
        # Tied weights have the first of their names.
        self._names = {id(parameter): name for name, parameter in reversed(list(whole_parameters(model)))}
        self._parts = parts_of_parameters(trained)
        self._trained = dict(trained.named_parameters(remove_duplicate=False))

    def counterpart(self, optimizer: torch.optim.Optimizer, options: Mapping[str, Any]) -> Any:
        """Return the counterpart of an optimizer of torch, with its hyperparameters and its state."""
        name = type(optimizer).__name__
        if type(optimizer) not in _HYPERPARAMETERS:
            known = ", ".join(kind.__name__ for kind in _HYPERPARAMETERS)
            raise KeyError(f"Could not find a PopTorch counterpart for optimizer {name}; use one of {known}.")
        keys = _HYPERPARAMETERS[type(optimizer)]
        groups = []
        for group in optimizer.param_groups:
            _check_convertible(optimizer, group)
            kept = {key: group[key] for key in ("initial_lr", *keys) if key in group}
            groups.append({**kept, "params": self.find_trained_parameters(group["params"])})
        defaults = {key: optimizer.param_groups[0][key] for key in keys}
        converted = getattr(backend.optim, name)(groups, **defaults, **_select_options(name, options))
        self._carry_state(optimizer, converted)
        return converted

    def find_trained_parameters(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters that are trained in place of these."""
        if any(id(parameter) not in self._names for parameter in parameters):
            raise InputError(
                "The optimizer has parameters that do not belong to the `model` of the trainer; create it with "
                "`model.parameters()`."
            )
        names = [part for param in parameters for part, _ in self._parts[self._names[id(param)]]]
        return [self._trained[name] for name in names]

    def _carry_state(self, optimizer: torch.optim.Optimizer, converted: torch.optim.Optimizer) -> None:
        """Start the program from the state of the user's optimizer, if it has made steps."""
        state: dict[str, dict[str, Tensor]] = {}
        steps = 0
        for parameter, held in optimizer.state.items():
            tensors = {key: held[key] for key in _STATE_NAMES if isinstance(held.get(key), Tensor)}
            if not tensors:
                continue
            steps = max(steps, int(held.get("step", 1)))
            for part, rows in self._parts[self._names[id(parameter)]]:
                state[f"{_PROGRAM_PREFIX}{part}"] = {key: _rows_of(tensor, rows) for key, tensor in tensors.items()}
        if state:
            counters = {"num_updates": steps, "loss_scaling": 1.0}
            converted.load_state_dict({**converted.state_dict(), "ipu_state": state, "ipu_param": counters})


def _rows_of(whole: Tensor, rows: slice) -> Tensor:
    # A parameter without dimensions has no rows; it is always in one piece.
    return whole[rows] if whole.dim() else whole


def _check_convertible(optimizer: torch.optim.Optimizer, given: Mapping[str, Any]) -> None:
    for name, instead in _WITHOUT_COUNTERPART.items():
        # torch's AdamW is Adam with this set, and poptorch's AdamW does the same.
        is_adamw = name == "decoupled_weight_decay" and isinstance(optimizer, torch.optim.AdamW)
        if given.get(name) and not is_adamw:
            raise InputError(
                f"`{name}={given[name]!r}` of {type(optimizer).__name__} has no counterpart on IPUs; {instead}."
            )


def _select_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if name == "RMSprop":
        if options["max_grad_norm"]:
            logger.warning(
                "`max_grad_norm=%s` has no effect on RMSprop, which cannot clip on IPUs; leave it out, or use SGD, "
                "Adam or AdamW.",
                options["max_grad_norm"],
            )
        return {key: value for key, value in options.items() if key != "max_grad_norm"}
    if name != "SGD":
        return dict(options)
    kept = {key: options[key] for key in ("loss_scaling", "accum_type", "max_grad_norm")}
    return {**kept, "velocity_accum_type": options["first_order_momentum_accum_type"]}


def rebind_schedule(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Make a schedule of torch or of AllenNLP change the rates of ``optimizer`` instead of another one's."""
    scheduler.optimizer = optimizer
    step = type(optimizer).step

    @functools.wraps(step)
    def call_step(*args: Any, **kwargs: Any) -> Any:
        return step(optimizer, *args, **kwargs)

    # torch's schedules warn about an optimizer whose `step` they have not wrapped.
    wrapper: Any = call_step
    wrapper._wrapped_by_lr_sched = True
    rebound: Any = optimizer
    rebound.step = wrapper


# ---- Loaded from checkpoints ----

# A weight or a piece of one, and the group of replicas that the state belongs to.
_NAME = re.compile(r"(?P<name>.+?)(?:\.pieces\.(?P<number>\d+)(?P<kind>\.weight|\.bias))?(?P<group>\[\d+\])?")


def repartition_state(state: Mapping[str, Any], optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the saved state of an optimizer for a model whose weights may now be cut into other pieces."""
    saved = state.get("ipu_state")
    if not saved:
        return dict(state)
    pieces: dict[tuple[str, str], dict[int, Mapping[str, Tensor]]] = defaultdict(dict)
    for name, held in saved.items():
        match = _NAME.fullmatch(name.removeprefix(_PROGRAM_PREFIX))
        assert match is not None
        weight = match["name"] + (match["kind"] or "")
        group = match["group"] or ""
        pieces[weight, group][int(match["number"] or 0)] = held
    parts = parts_of_parameters(model)
    current: dict[str, dict[str, Tensor]] = {}
    for (weight, group), numbered in pieces.items():
        ordered = [numbered[number] for number in sorted(numbered)]
        whole = ordered[0]
        if len(ordered) > 1:
            whole = {key: torch.cat([part[key] for part in ordered]) for key in whole}
        for part, rows in parts.get(weight, [(weight, slice(None))]):
            held = {key: _rows_of(value, rows).clone() for key, value in whole.items()}
            current[f"{_PROGRAM_PREFIX}{part}{group}"] = held
    groups = state["param_groups"]
    own_groups = optimizer.state_dict()["param_groups"]
    if len(own_groups) == len(groups):
        # `load_state_dict` compares the number of parameters in each group.
        groups = [{**group, "params": own["params"]} for group, own in zip(groups, own_groups, strict=True)]
    return {**state, "ipu_state": current, "param_groups": groups}
