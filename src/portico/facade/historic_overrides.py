"""Overrides written for an older transformers, whose hooks took fewer arguments."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

# Arguments that hooks got between transformers 4.2 and 5.
_ADDED_ARGUMENTS = {
    "_get_train_sampler": {"train_dataset"},
    "_maybe_log_save_evaluate": {"grad_norm", "start_time", "learning_rate"},
    "compute_loss": {"return_outputs", "num_items_in_batch"},
    "evaluate": {"ignore_keys"},
    "get_batch_samples": {"device"},
    "log": {"start_time"},
    "prediction_step": {"ignore_keys"},
    "save_model": {"_internal_call"},
    "training_step": {"num_items_in_batch"},
}
_CATCH_ALL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_MARK = "_left_out_arguments"


def adapt_overrides(subclass: type, trainer_class: type) -> None:
    """Make hooks of ``subclass`` that know an older signature callable with that of ``trainer_class``.

    Each is announced once, with the signature it should get.
    """
    for hook, added in _ADDED_ARGUMENTS.items():
        override, current = getattr(subclass, hook), inspect.signature(getattr(trainer_class, hook))
        names = list(current.parameters)
        missing = _left_out(added, override, names)
        if missing and not hasattr(override, _MARK):
            warnings.warn(
                f"`{subclass.__name__}.{hook}` does not take {', '.join(f'`{name}`' for name in sorted(missing))}, as "
                f"in older versions of transformers; it is called without. Give it the signature `{hook}{current}`.",
                FutureWarning,
                stacklevel=3,
            )
            setattr(subclass, hook, _called_without(missing, override, names))


def leaves_out(hook: Callable[..., Any], argument: str) -> bool:
    """Tell whether ``hook`` is an older override that is called without ``argument``."""
    return argument in getattr(hook, _MARK, ())


def _left_out(added: set[str], override: Callable[..., Any], current: list[str]) -> set[str]:
    parameters = inspect.signature(override).parameters.values()
    if any(parameter.kind in _CATCH_ALL for parameter in parameters):
        return set()
    names = [parameter.name for parameter in parameters]
    # A name of the user's own in an argument's place is that argument, renamed.
    renamed = {known for known, own in zip(current, names, strict=False) if own not in current}
    return added - set(names) - renamed


def _called_without(missing: set[str], override: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    @functools.wraps(override)
    def adapted(*args: Any, **kwargs: Any) -> Any:
        kept = [value for name, value in zip(names, args, strict=False) if name not in missing]
        named = {name: value for name, value in kwargs.items() if name not in missing}
        return override(*kept, *args[len(names) :], **named)

    setattr(adapted, _MARK, frozenset(missing))
    return adapted
