"""The answer to an argument that a class does not have: which of its arguments may be meant."""

import functools
import inspect
from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import Concatenate, ParamSpec, TypeVar

from portico.compat.transformers import HFTrainingArguments
from portico.errors import InputTypeError

_Instance = TypeVar("_Instance")
_P = ParamSpec("_P")
_CATCH_ALL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

# Common names of arguments that have another name here, and are not spelled like it.
_MEANT = {
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "gradient_clip_val": "max_grad_norm",
    "lr": "learning_rate",
    "optimizer": "optim",
    "scheduler": "lr_scheduler_type",
}
# Training arguments of portico, whose module imports this one.
_PLACEMENT = ("accelerator", "strategy", "devices", "num_nodes", "precision")


def refuse_unknown_arguments(cls: type, given: Collection[str], known: Collection[str]) -> None:
    """Refuse names in ``given`` that are none of the ``known`` arguments of ``cls``, and say which may be meant."""
    for unknown in given:
        if unknown not in known:
            raise InputTypeError(
                f"`{cls.__name__}` has no argument `{unknown}`{_suggest(unknown, known)} Give one of those that "
                f"`help({cls.__name__})` lists."
            )


def _suggest(unknown: str, known: Collection[str]) -> str:
    usual = _MEANT.get(unknown, unknown)
    containing = [name for name in known if unknown in name]
    nearest = [usual] if usual in known else (containing or get_close_matches(unknown, known))[:3]
    in_arguments = usual in HFTrainingArguments.__dataclass_fields__ or usual in _PLACEMENT
    if "args" in known and in_arguments and (usual == unknown or not nearest):
        return f"; did you mean `args=TrainingArguments({usual}=...)`?"
    return f"; did you mean {' or '.join(f'`{name}`' for name in nearest)}?" if nearest else "."


def names_unknown_arguments(
    constructor: Callable[Concatenate[_Instance, _P], None],
) -> Callable[Concatenate[_Instance, _P], None]:
    """Decorate the ``__init__`` of a trainer to answer an unknown argument with the arguments that may be meant.

    Subclasses that pass arguments on get this answer instead of Python's ``TypeError`` too, since they call it.
    """
    own = inspect.signature(constructor).parameters

    @functools.wraps(constructor)
    def checked(instance: _Instance, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        unknown = [name for name in kwargs if name not in own]
        if unknown:
            inits = [vars(base)["__init__"] for base in type(instance).__mro__[:-1] if "__init__" in vars(base)]
            parameters = [parameter for init in inits for parameter in inspect.signature(init).parameters.values()]
            named = [parameter.name for parameter in parameters if parameter.kind not in _CATCH_ALL]
            # In order and once each; no caller gives `self`.
            known = dict.fromkeys(name for name in named if name != "self")
            refuse_unknown_arguments(type(instance), unknown, known)
        constructor(instance, *args, **kwargs)

    return checked
