"""Optimizers and learning-rate schedulers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from transformers import get_scheduler

from portico.compat import transformers as hf_compat
from portico.distributed.model_parallel import group_by_mesh
from portico.errors import InputError, InputTypeError, MissingPackageError

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments
    from portico.compat.annotations import Scheduler


class ParameterwiseOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer that updates one parameter after another; a subclass implements ``_update``."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    @abstractmethod
    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        """Change ``parameter`` and its state in place, without recording gradients."""


# The patterns of `transformers.Trainer.get_decay_parameter_names`.
_NEVER_DECAYED = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
# Keyword arguments of optimizers that choose their own parameters (GaLore, LOMO and others).
_OWN_PARAMETERS = ("params", "model", "optimizer_dict")
# Schedulers that need a metric, and so step after evaluations.
STEP_AFTER_EVALUATION = (ReduceLROnPlateau, hf_compat.GreedyLR)


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters with weight decay: all but biases and normalisation layers."""
    return hf_compat.get_parameter_names(model, [nn.LayerNorm], list(_NEVER_DECAYED))


def parameter_groups(model: nn.Module, decayed: list[str], weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters into those with weight decay and those without, in the model's order.

    Parameters that are sharded over different processes are split further: kernels take tensors of one mesh.
    """
    chosen = set(decayed)
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for name, parameter in trainable if name in chosen], "weight_decay": weight_decay},
        {"params": [parameter for name, parameter in trainable if name not in chosen], "weight_decay": 0.0},
    ]
    if len(group_by_mesh(parameter for _, parameter in trainable)) == 1:
        return groups
    return [{**group, "params": same} for group in groups for same in group_by_mesh(group["params"]).values()]


def build_optimizer(
    model: nn.Module, groups: list[dict[str, Any]], optimizer_cls: Any, kwargs: dict[str, Any]
) -> torch.optim.Optimizer:
    """Make an optimizer from a class, or from a factory that takes the whole model."""
    if hf_compat.is_optimizer_factory(optimizer_cls):
        return optimizer_cls()(model, **kwargs)
    if optimizer_cls is hf_compat.LayerWiseDummyOptimizer:
        optimizer_cls = LayerwiseOptimizer
    kwargs = dict(kwargs)
    parameters: Any = groups
    for name in _OWN_PARAMETERS:
        parameters = kwargs.pop(name, parameters)
    if parameters is groups and not any(group["params"] for group in groups):
        raise InputError(
            f"{type(model).__name__} has no parameter that is trained: `requires_grad` is False for all of them; set "
            "it to True for those to train."
        )
    try:
        optimizer: torch.optim.Optimizer = optimizer_cls(parameters, **kwargs)
    except (TypeError, ValueError) as error:
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        given = ", ".join(f"{name}={value!r}" for name, value in kwargs.items() if name not in _OWN_PARAMETERS)
        raise kind(
            f"The optimizer {getattr(optimizer_cls, '__name__', optimizer_cls)} cannot be made with {given}: "
            f"{str(error).rstrip('.')}. Correct `optimizer_cls_and_kwargs`, or, without it, `optim_args`, "
            "`learning_rate`, `adam_beta1`, `adam_beta2` and `adam_epsilon`."
        ) from error
    if "bitsandbytes" in str(optimizer_cls) and kwargs.get("optim_bits") == 8:
        _keep_embeddings_in_32_bits(model)
    if hasattr(optimizer, "fused_backward"):  # LOMO updates the weights during the backward pass
        # Schedules count the calls of `step`, so it has to exist even if it does nothing.
        optimizer.step = MethodType(LayerwiseOptimizer.step, optimizer)  # type: ignore[method-assign]
    return optimizer


class LayerwiseOptimizer(torch.optim.Optimizer):
    """Stand-in for optimizers that hooks on each parameter run during backward; its one group carries the schedule.

    ``get_scheduler`` would schedule each parameter of transformers' stand-in, but under transformers accelerate wraps
    the optimizer first: the parameters keep their rate, and only the logged rate follows the schedule. ``kwargs`` are
    ignored: the optimizers were made with them.
    """

    def __init__(self, optimizer_dict: dict[nn.Parameter, torch.optim.Optimizer], lr: float, **kwargs: Any) -> None:
        self.optimizer_dict = optimizer_dict
        # As in transformers' `LayerWiseDummyOptimizer`: the random draw keeps later draws the same.
        super().__init__([torch.randn(1, 1)], {"lr": lr})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the hooks did."""

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Do nothing: the hooks did."""


def _keep_embeddings_in_32_bits(model: nn.Module) -> None:
    import bitsandbytes

    optim: Any = bitsandbytes.optim
    overrides = optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            # Eight bits are too few for the sparse, uneven gradients of embeddings.
            overrides.register_module_override(module, "weight", {"optim_bits": 32})


def scheduler_config(scheduler: "Scheduler | None", optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return Lightning's configuration of a scheduler, empty for a scheduler that needs a metric."""
    if scheduler is None or isinstance(scheduler, STEP_AFTER_EVALUATION):
        return {}
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        hf_compat.logger.warning(
            "The scheduler in `optimizers` was made for another optimizer than the one that trains, so it does not "
            "change the learning rate of this run; give both in `optimizers`."
        )
        return {"lr_scheduler": {"scheduler": _Detached(scheduler, optimizer), "interval": "step"}}
    return {"lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def schedule_new_groups(scheduler: "Scheduler | None", optimizer: torch.optim.Optimizer) -> None:
    """Let groups that were added to ``optimizer`` since ``scheduler`` was made follow the schedule of the last group.

    Their rate is what it is now: the schedule is a factor of it from here on. Most schedulers of torch fail at their
    next step when there are new groups.
    """
    is_of_optimizer = getattr(scheduler, "optimizer", optimizer) is optimizer
    rates = getattr(scheduler, "base_lrs", None) if is_of_optimizer else None
    new = optimizer.param_groups[len(rates) :] if rates is not None else []
    if not new:
        return
    known: Any = scheduler
    for group in new:
        for parameter in group["params"]:
            parameter.requires_grad_(True)  # a resumed `BaseFinetuning` adds them again, and leaves them frozen
        factor = known.lr_lambdas[-1](known.last_epoch) if isinstance(known, LambdaLR) else 1.0
        group["initial_lr"] = group["lr"] / factor if factor else group["lr"]
        known.base_lrs.append(group["initial_lr"])
        known._last_lr.append(group["lr"])
        if hasattr(known, "lr_lambdas"):
            known.lr_lambdas.append(known.lr_lambdas[-1])


def drop_misfit_states(optimizer: Any, model: nn.Module, shapes: Mapping[str, torch.Size]) -> None:
    """Drop the states of parameters whose shape is not in ``shapes``, the shapes of the last training, with a warning.

    ``model.resize_token_embeddings`` changes parameters in place. Fused kernels then read beyond the states, which
    ends the interpreter, also under transformers.
    """
    states = getattr(optimizer, "state", {})
    changed = [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.shape != shapes.get(name, parameter.shape) and parameter in states
    ]
    for _, parameter in changed:
        del states[parameter]
    if changed:
        hf_compat.logger.warning(
            f"{', '.join(name for name, _ in changed)} changed in shape since the last training, so the states of the "
            "optimizer do not fit, and start afresh."
        )


class _Detached:
    """A scheduler of another optimizer than ``optimizer``, which Lightning would refuse and transformers does not."""

    def __init__(self, scheduler: "Scheduler", optimizer: torch.optim.Optimizer) -> None:
        self._scheduler = scheduler
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_scheduler"], name)


def resolve_optimizer(args: "TrainingArguments", model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the class and the keyword arguments of the optimizer named by ``args.optim``.

    A missing package, and arguments that do not fit it, raise ``InputError`` (and ``ImportError``).
    """
    options = args.optim_args
    try:
        parts = options.replace(" ", "").split(",") if options else []
    except (AttributeError, TypeError) as error:
        raise InputTypeError(
            f"`optim_args={options!r}` cannot be used; set it to a string, such as 'momentum=0.9'."
        ) from error
    wrong = [part for part in parts if part.count("=") != 1]
    if wrong:
        raise InputError(
            f"`optim_args={options!r}` has the part {wrong[0]!r}, which is not of the form `name=value`; separate the "
            "options of the optimizer by commas, as in 'momentum=0.9,nesterov=true'."
        )
    try:
        return hf_compat.optimizer_cls_and_kwargs(args, model)
    except (ImportError, ValueError) as error:
        kind = MissingPackageError if isinstance(error, ImportError) else InputError
        name = getattr(args.optim, "value", args.optim)
        given = f"`optim={name!r}`" + (f" with `optim_args={options!r}`" if options else "")
        raise kind(
            f"{given} cannot be used: {str(error).rstrip('.')}. Or set another name, as `optim='adamw_torch'`."
        ) from error


def refuse_scheduler_kwargs(args: "TrainingArguments") -> None:
    """Refuse ``lr_scheduler_kwargs`` that the scheduler does not take, before there are a model and its optimizer."""
    some_steps = 1_000
    make_scheduler(args, torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate), some_steps)


def make_scheduler(
    args: "TrainingArguments", optimizer: torch.optim.Optimizer | None, num_training_steps: int
) -> "Scheduler":
    """Return the scheduler of ``args.lr_scheduler_type``; refuse ``lr_scheduler_kwargs`` that it does not take."""
    try:
        # Its annotations leave out the `None` of an optimizer, and the schedulers that step on a metric.
        make: Any = get_scheduler
        scheduler: Scheduler = make(
            args.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(num_training_steps),
            num_training_steps=num_training_steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
        for factor_at in getattr(scheduler, "lr_lambdas", ()):
            factor_at(max(num_training_steps - 1, 0))  # values of a wrong type are first used after the warmup
        return scheduler
    except (TypeError, ValueError) as error:
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        raise kind(
            f"`lr_scheduler_type={name!r}` with `lr_scheduler_kwargs={args.lr_scheduler_kwargs!r}` cannot be used: "
            f"{str(error).rstrip('.')}. Set `lr_scheduler_kwargs` to arguments of this scheduler, or choose another "
            "one."
        ) from error
