"""Parts of the wrong kind: refused where they are given, since what they break is far from there."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback

from portico.errors import InputTypeError


def check_part_kinds(model: Any, callbacks: Any, optimizers: Any, lightning_callbacks: Any) -> None:
    """Refuse parts that cannot be what their parameter takes.

    Args:
        model: Given as the model.
        callbacks: Given as callbacks of Hugging Face.
        optimizers: Given as optimizer and schedule.
        lightning_callbacks: Given as callbacks of Lightning.

    Raises:
        InputTypeError: Says what came and what to give.
    """
    if isinstance(model, type):
        raise InputTypeError(
            f"`model` is the class {model.__name__}; give a model made of it, or a function that makes one as "
            "`model_init`."
        )
    for callback in _listed("callbacks", callbacks):
        _check_callback(callback)
    for callback in _listed("lightning_callbacks", lightning_callbacks):
        if not isinstance(callback, Callback):
            raise InputTypeError(
                f"`lightning_callbacks` holds a {_kind(callback)}; give instances of Lightning's `Callback` there, "
                "and those of `TrainerCallback` in `callbacks`."
            )
    _check_optimizers(optimizers)


def _listed(name: str, callbacks: Any) -> Sequence[Any]:
    if callbacks is not None and not isinstance(callbacks, list | tuple):
        raise InputTypeError(f"`{name}` is a {_kind(callbacks)}; give a list of callbacks.")
    return callbacks or []


def _check_callback(callback: Any) -> None:
    # What has the events need not inherit from `TrainerCallback`.
    if not hasattr(callback, "on_init_end"):
        place = "in `lightning_callbacks`" if isinstance(callback, Callback) else "nowhere"
        raise InputTypeError(
            f"`callbacks` holds a {_kind(callback)}, which has no `on_init_end`; give instances or subclasses of "
            f"`TrainerCallback` there, and this one {place}."
        )


def _check_optimizers(optimizers: Any) -> None:
    is_pair = isinstance(optimizers, list | tuple) and len(optimizers) == 2
    if not is_pair or not (optimizers[0] is None or hasattr(optimizers[0], "param_groups")):
        shown = f"({', '.join(map(_kind, optimizers))})" if is_pair else f"a {_kind(optimizers)}"
        raise InputTypeError(
            f"`optimizers` is {shown}; give a tuple of an optimizer and a schedule, each of which may be None."
        )


def _kind(part: Any) -> str:
    return type(part).__name__
