"""Several optimizers, each for some of the parameters, that act as one."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from portico.gradient_descent.construction import as_lazy
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.lazy import Lazy
from portico.gradient_descent.optimizers.optimizer import Optimizer
from portico.gradient_descent.parameter_groups import NamedParameters, ParameterGroups, find_groups

_DEFAULT = "default"


@Optimizer.register("multi")
class MultiOptimizer(torch.optim.Optimizer):
    """Steps several optimizers; schedules and checkpoints see the parameter groups of all, in their order.

    Args:
        model_parameters: Pairs of name and parameter.
        parameter_groups: Pairs of regular expressions and options, among them ``"optimizer_name"``; a group without
            it, and what no expression is found in, belong to the optimizer ``"default"``.
        optimizers: Lazy optimizers by name.

    Raises:
        ConfigurationError: If there is no default, or an optimizer has no parameters or is not there.
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups,
        optimizers: Mapping[str, Lazy[Optimizer]],
    ) -> None:
        named = list(model_parameters)
        shares = _shares(named, parameter_groups, optimizers)
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            name: _construct(optimizers[name], *share) for name, share in shares.items()
        }
        super().__init__(self._all_groups(), {})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step of every optimizer; return what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers.values():
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all optimizers by name, and the parameter groups of all."""
        states = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        groups = [group for state in states.values() for group in state["param_groups"]]
        return {"optimizers": states, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state_dict["optimizers"][name])
        # Each optimizer has put new groups in the place of its own.
        self.param_groups = self._all_groups()

    def _all_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]


def _shares(
    named: list[tuple[str, Any]], groups: ParameterGroups, optimizers: Mapping[str, Any]
) -> dict[str, tuple[list[tuple[str, Any]], list[Any]]]:
    """Return the parameters and groups of each optimizer by its name, without a default that has nothing to do."""
    if _DEFAULT not in optimizers:
        raise ConfigurationError(
            f"`optimizers` of the optimizer 'multi' holds {', '.join(optimizers) or 'nothing'}, but not 'default'; "
            "add one under this name, for the parameters that no group matches."
        )
    owners = [options.get("optimizer_name", _DEFAULT) for _, options in groups]
    missing = sorted(set(owners) - set(optimizers))
    if missing:
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
    idle = [name for name, (parameters, _) in shares.items() if not parameters and name != _DEFAULT]
    if idle:
        raise ConfigurationError(
            f"The optimizer '{idle[0]}' of 'multi' has no parameters; let a parameter group with "
            f"`optimizer_name='{idle[0]}'` match some, or remove it from `optimizers`."
        )
    return {name: share for name, share in shares.items() if share[0]}


def _construct(given: Any, parameters: list[tuple[str, Any]], groups: list[Any]) -> torch.optim.Optimizer:
    lazy = as_lazy(Optimizer, given)
    assert lazy is not None
    optimizer: torch.optim.Optimizer = lazy.construct(model_parameters=parameters, parameter_groups=groups or None)
    return optimizer
