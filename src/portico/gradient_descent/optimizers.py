"""AllenNLP's optimizers by name, and the parameters they get: frozen or grouped by regular expressions."""

import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import Adafactor
from typing_extensions import override

from portico.gradient_descent.construction import ConfigurationError, Lazy, Registrable, make_lazy, parameters_of
from portico.loop.optim import ParameterwiseOptimizer

logger = logging.getLogger(__name__)

NamedParameters = Iterable[tuple[str, nn.Parameter]]
# Regular expressions of names, with the options of the group.
ParameterGroups = Sequence[tuple[Sequence[str], Mapping[str, Any]]]

_DEFAULT = "default"


def freeze(model: nn.Module, patterns: Sequence[str] | None) -> None:
    """Turn gradients off for the parameters whose names match (``re.search``) one of ``patterns``; log which."""
    searches = [_compile(pattern) for pattern in patterns or ()]
    for name, parameter in model.named_parameters():
        if any(search.search(name) for search in searches):
            parameter.requires_grad_(False)
    for word, wanted in (("Frozen", False), ("Tunable", True)):
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad is wanted]
        logger.info("%s parameters: %s", word, ", ".join(names) or "none")


def make_parameter_groups(model_parameters: NamedParameters, groups: ParameterGroups | None = None) -> list[Any]:
    """Return what an optimizer takes as ``params``: the parameters, or groups of them.

    ``groups`` are pairs of regular expressions and options; a group with ``"requires_grad": False`` is frozen and left
    out. Parameters that match no expression form the last group, which has no options.
    """
    named = list(model_parameters)
    if not groups:
        return [parameter for _, parameter in named]
    indices, unused = find_groups([name for name, _ in named], groups)
    for pattern in unused:
        logger.warning("The parameter group pattern '%s' matches no parameter name; correct or remove it.", pattern)
    made: list[dict[str, Any]] = [{"params": [], **options} for _, options in groups]
    rest: dict[str, Any] = {"params": []}
    for (_, parameter), index in zip(named, indices, strict=True):
        (rest if index is None else made[index])["params"].append(parameter)
    for group in made:
        if group.get("requires_grad", True):
            continue
        for parameter in group["params"]:
            parameter.requires_grad_(False)
        if options := sorted(set(group) - {"params", "requires_grad"}):
            logger.warning(
                "The options of a frozen parameter group have no effect: %s; remove them.", ", ".join(options)
            )
    return [group for group in (*made, rest) if group.get("requires_grad", True)]


def find_groups(names: Sequence[str], groups: ParameterGroups) -> tuple[list[int | None], list[str]]:
    """Return the index of each name's group (``None`` for no group), and the patterns that match no name."""
    for group in groups:
        is_pair = isinstance(group, list | tuple) and len(group) == 2
        if not (is_pair and isinstance(group[0], list | tuple) and isinstance(group[1], Mapping)):
            raise ConfigurationError(
                f"`parameter_groups` holds {group!r}; write each group as a list of patterns and a dict of options: "
                '[["bias", "norm"], {"weight_decay": 0.0}].'
            )
    numbered = [(index, _compile(pattern)) for index, (patterns, _) in enumerate(groups) for pattern in patterns]
    used: set[str] = set()
    indices: list[int | None] = []
    for name in names:
        matches = [(index, search.pattern) for index, search in numbered if search.search(name)]
        if len({index for index, _ in matches}) > 1:
            raise ConfigurationError(
                f"The parameter '{name}' belongs to two parameter groups (matched by '{matches[-1][1]}' and by an "
                "earlier pattern); make the patterns mutually exclusive."
            )
        used.update(pattern for _, pattern in matches)
        indices.append(matches[0][0] if matches else None)
    return indices, [search.pattern for _, search in numbered if search.pattern not in used]


class RegistrableOptimizer(Registrable):
    """Registry of optimizers.

    A registered class or function is called with ``model_parameters``, pairs of name and parameter, or with
    ``params``, as the classes of ``torch.optim`` are, and with the rest of its configuration.
    """

    _accepted = (torch.optim.Optimizer,)
    default_implementation = "adam"


# AllenNLP's name.
Optimizer = RegistrableOptimizer


class HuggingfaceAdamW(ParameterwiseOptimizer, torch.optim.AdamW):
    """The AdamW that transformers removed in favour of torch's, with its former arguments and defaults.

    It is torch's, unless ``correct_bias`` is false: BERT was trained without the correction, and torch has no option.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.correct_bias = correct_bias

    @override
    def step(self, closure: Any = None) -> Any:
        return torch.optim.AdamW.step(self, closure) if self.correct_bias else super().step(closure)

    @override
    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            # The names that torch gives them.
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        first = state["exp_avg"].mul_(beta1).add_(parameter.grad, alpha=1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        parameter.addcdiv_(first, second.sqrt().add_(group["eps"]), value=-group["lr"])
        # In this order in transformers 4: it decays what the step left.
        parameter.add_(parameter, alpha=-group["lr"] * group["weight_decay"])


class DenseSparseAdam(ParameterwiseOptimizer):
    """Adam that leaves the moments of rows without a gradient unchanged, where a gradient is sparse.

    A dense gradient is treated as by Adam, a sparse one as by ``torch.optim.SparseAdam``, decided at each step. As in
    AllenNLP, ``eps`` is added before the bias is corrected.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        if not (lr >= 0 and eps >= 0 and all(0 <= beta < 1 for beta in betas)):
            raise ConfigurationError(
                f"DenseSparseAdam got `lr={lr}`, `betas={tuple(betas)}`, `eps={eps}`; set `lr` and `eps` to 0 or more "
                "and both betas to 0 or more and below 1."
            )
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps})

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        step_size = group["lr"] * math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            # A row may occur more than once.
            rows = gradient.coalesce()
            first = _move_rows(state["exp_avg"], rows, rows.values(), beta1)
            second = _move_rows(state["exp_avg_sq"], rows, rows.values().pow(2), beta2)
            change = -step_size * (first / second.sqrt().add_(group["eps"]))
            parameter.add_(_replace_values(rows, change))
        else:
            first = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
            second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            parameter.addcdiv_(first, second.sqrt().add_(group["eps"]), value=-step_size)


def _move_rows(moment: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, beta: float) -> torch.Tensor:
    """Move the rows of ``moment`` that are in the sparse tensor ``rows`` towards ``values``; return these rows."""
    before = moment.sparse_mask(rows).values()
    change = (values - before) * (1 - beta)
    moment.add_(_replace_values(rows, change))
    return before + change


def _replace_values(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(rows.indices(), values, rows.shape, is_coalesced=True, check_invariants=False)


def _register(name: str, optimizer_class: Callable[..., torch.optim.Optimizer]) -> None:
    """Register a class like torch's, with AllenNLP's ``parameter_groups`` instead of ``params``."""

    def make(
        model_parameters: NamedParameters, parameter_groups: ParameterGroups | None = None, **options: object
    ) -> torch.optim.Optimizer:
        optimizer = optimizer_class(make_parameter_groups(model_parameters, parameter_groups), **options)
        # torch stores options that it does not know in the group, without using them.
        known = sorted({*optimizer.defaults, "requires_grad"})
        unknown = sorted({option for _, group in parameter_groups or () for option in group}.difference(known))
        if unknown:
            logger.warning(
                "A parameter group has the option `%s`, which has no effect, as %s does not know it; it knows: %s.",
                unknown[0],
                type(optimizer).__name__,
                ", ".join(known),
            )
        return optimizer

    torch_options = parameters_of(optimizer_class)
    del torch_options["params"]
    # Without annotations: torch accepts lists for tuples, and floats where it says tensors.
    further = [
        parameter.replace(annotation=inspect.Parameter.empty, kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in torch_options.values()
    ]
    function: Any = make
    function.__signature__ = inspect.Signature([*parameters_of(make).values(), *further])
    function.__name__ = function.__qualname__ = optimizer_class.__name__
    function.__annotations__ = {}
    RegistrableOptimizer.register(name)(function)


for _name, _class in {
    "adam": torch.optim.Adam,
    "sparse_adam": torch.optim.SparseAdam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "huggingface_adamw": HuggingfaceAdamW,
    "huggingface_adafactor": Adafactor,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "averaged_sgd": torch.optim.ASGD,
    "dense_sparse_adam": DenseSparseAdam,
}.items():
    _register(_name, _class)


@RegistrableOptimizer.register("multi")
class MultiOptimizer(torch.optim.Optimizer):
    """Steps several optimizers; schedulers and checkpoints see the parameter groups of all, in order.

    Args:
        model_parameters: Pairs of name and parameter.
        parameter_groups: Pairs of regular expressions and options, among them ``"optimizer_name"``. Groups without
            it, and parameters that match no expression, belong to the optimizer ``"default"``.
        optimizers: Lazy optimizers by name.
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups,
        optimizers: Mapping[str, Lazy[RegistrableOptimizer]],
    ) -> None:
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        for name, (parameters, groups) in _shares(list(model_parameters), parameter_groups, optimizers).items():
            lazy = make_lazy(RegistrableOptimizer, optimizers[name])
            assert lazy is not None
            self.optimizers[name] = lazy.construct(model_parameters=parameters, parameter_groups=groups or None)
        super().__init__(self._all_groups(), {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for optimizer in self.optimizers.values():
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all optimizers by name, and the parameter groups of all."""
        states = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        groups = [group for state in states.values() for group in state["param_groups"]]
        return {"optimizers": states, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state_dict["optimizers"][name])
        # torch replaces the groups of an optimizer whose state is loaded.
        self.param_groups = self._all_groups()

    def _all_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]


def _shares(
    named: list[tuple[str, Any]], groups: ParameterGroups, optimizers: Mapping[str, Any]
) -> dict[str, tuple[list[tuple[str, Any]], list[Any]]]:
    """Return the parameters and groups of each optimizer by name; a default without parameters is left out."""
    if _DEFAULT not in optimizers:
        raise ConfigurationError(
            f"`optimizers` of the optimizer 'multi' holds {', '.join(optimizers) or 'nothing'}, but not 'default'; "
            "add one under this name, for the parameters that no group matches."
        )
    owners = [options.get("optimizer_name", _DEFAULT) for _, options in groups]
    if missing := sorted(set(owners) - set(optimizers)):
        raise ConfigurationError(
            f"A parameter group of the optimizer 'multi' has `optimizer_name={missing[0]!r}`, but `optimizers` holds "
            f"{', '.join(optimizers)}; add it there, or correct the name."
        )
    indices, _ = find_groups([name for name, _ in named], groups)
    shares: dict[str, tuple[list[tuple[str, Any]], list[Any]]] = {name: ([], []) for name in optimizers}
    for (patterns, options), owner in zip(groups, owners, strict=True):
        rest = {key: value for key, value in options.items() if key != "optimizer_name"}
        shares[owner][1].append((patterns, rest))
    for pair, index in zip(named, indices, strict=True):
        shares[_DEFAULT if index is None else owners[index]][0].append(pair)
    if idle := [name for name, (parameters, _) in shares.items() if not parameters and name != _DEFAULT]:
        raise ConfigurationError(
            f"The optimizer '{idle[0]}' of 'multi' has no parameters; let a parameter group with "
            f"`optimizer_name='{idle[0]}'` match some, or remove it from `optimizers`."
        )
    return {name: share for name, share in shares.items() if share[0]}


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(
            f"'{pattern}' is not a regular expression ({error}); write one that matches parameter names."
        ) from error
