"""Training arguments that only changed their name."""

import argparse
import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

from portico.errors import InputError
from portico.old_spellings.warning import warn_of_old_name

RENAMED: Mapping[str, str] = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "torchdynamo": "torch_compile_backend",
    "warmup_ratio": "warmup_steps",
    "xpu_backend": "ddp_backend",
}

# What the older names had for "not set": arguments written out by an older version hold them all.
_UNSET: Mapping[str, Any] = {"evaluation_strategy": "no", "no_cuda": False, "warmup_ratio": 0}

_Class = TypeVar("_Class", bound=type)


class TakesOldNames(type):
    """Metaclass of training arguments whose constructor takes older names.

    A plain ``__init__`` would not do: each dataclass that a user derives gets one of its own.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an instance, from arguments of either name."""
        return super().__call__(*args, **present_names(kwargs))

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's own; inspection would find that of :meth:`__call__`."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def present_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments under their present names, with a warning for each older one.

    Args:
        given: Arguments by name; an older one that is ``None`` says nothing.

    Raises:
        InputError: If both names of an argument are there and say different things.
    """
    present = {name: value for name, value in given.items() if name not in RENAMED}
    for old, new in RENAMED.items():
        if given.get(old) is None:
            continue
        warn_of_old_name(old, new)
        value = _warmup_steps(given[old]) if old == "warmup_ratio" else given[old]
        if new not in present or present[new] is None:
            present[new] = value
        elif value not in (present[new], _UNSET.get(old)):
            raise InputError(
                f"`{new}={present[new]!r}` and `{old}={given[old]!r}` are two spellings of one argument and differ; "
                f"give `{new}` alone."
            )
    return present


def _warmup_steps(ratio: float) -> float:
    if not 0 <= ratio <= 1:
        raise InputError(f"`warmup_ratio={ratio}` is no part of a run; use a number from 0 to 1, in `warmup_steps`.")
    # Below one, `warmup_steps` is a part of the run; at one it is a single step.
    return math.nextafter(1.0, 0.0) if ratio == 1 else ratio


class _OldName:
    """An attribute that reads and writes another one."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else getattr(instance, self.new)

    def __set__(self, instance: Any, value: Any) -> None:
        warn_of_old_name(self.old, self.new)
        setattr(instance, self.new, value)


class _StoreEitherName(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        old = (option or "").lstrip("-").replace("-", "_")
        if old in RENAMED:
            warn_of_old_name(f"--{old}", f"--{self.dest}")
            values = _warmup_steps(values) if old == "warmup_ratio" else values
        setattr(namespace, self.dest, values)


def with_old_names(base: type) -> Callable[[_Class], _Class]:
    """Return a decorator, to stand below ``@dataclass``, that gives the older names to instances and parsers.

    Args:
        base: The dataclass that has the fields under their present names.
    """

    def decorate(cls: _Class) -> _Class:
        hints, fields = get_type_hints(base), {field.name: field for field in dataclasses.fields(base)}
        cls.__annotations__ = dict(cls.__annotations__)
        for old, new in RENAMED.items():
            setattr(cls, old, _OldName(old, new))
            # `HfArgumentParser` hands a field's metadata to `argparse`.
            options = {"aliases": [f"--{old}", f"--{old.replace('_', '-')}"], "action": _StoreEitherName}
            metadata = {**fields[new].metadata, **options}
            cls.__annotations__[new] = hints[new]
            setattr(cls, new, dataclasses.field(default=fields[new].default, metadata=metadata))
        return cls

    return decorate
