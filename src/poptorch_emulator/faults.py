"""Fault injection: failures on purpose, to test that a run notices or survives them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from poptorch_emulator.errors import Error

_HOST_ACCESS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")


@dataclass
class Faults:
    """What is checked, and what fails, while programs run."""

    forbids_host_access: bool = False
    """Fail when a model reads the values of tensors (``item()``, a branch on data): a running device hides them."""
    requires_set_optimizer: bool = False
    """Fail when the user's optimizer was changed without ``setOptimizer``."""
    fails_on_call: tuple[int, ...] = ()
    """Calls, counted from 1, that raise ``error`` before computing anything."""
    error: Exception = field(default_factory=lambda: Error("A failure was injected into this call."))
    """The exception that they raise."""
    input_check: Callable[[dict[str, Any]], None] | None = None
    """Called with the arguments of each call by name; raises if they are wrong, such as badly padded."""
    num_calls: int = 0
    """Calls so far."""

    def check_call(self, arguments: dict[str, Any], *, optimizer_is_current: bool) -> None:
        """Fail or check at the start of a call, whose arguments come by name."""
        self.num_calls += 1
        if self.num_calls in self.fails_on_call:
            raise self.error
        if self.requires_set_optimizer and not optimizer_is_current:
            raise Error(
                "The optimizer was changed without `setOptimizer`, so the device still uses the old hyperparameters; "
                "call `setOptimizer(optimizer)` after each change."
            )
        if self.input_check is not None:
            self.input_check(arguments)


class _NoHostAccess(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if not _is_on_host and name in _HOST_ACCESS and args and isinstance(args[0], Tensor):
            raise Error(
                f"The model calls `{name}` on a tensor, but the host cannot see values while a program runs on the "
                "device; compute with tensors, for example with `torch.where`."
            )
        return func(*args, **(kwargs or {}))


_current: Faults | None = None
_is_on_host = False


@contextmanager
def host_access() -> Iterator[None]:
    """Mark the ``with`` block as a part of a program that runs on the host, and may read values."""
    global _is_on_host
    enclosing = _is_on_host
    _is_on_host = True
    try:
        yield
    finally:
        _is_on_host = enclosing


def current_faults() -> Faults | None:
    return _current


@contextmanager
def injected(**options: Any) -> Iterator[Faults]:
    """Inject faults, fields of :class:`Faults`, inside a ``with`` block."""
    global _current
    enclosing = _current
    _current = Faults(**options)
    try:
        yield _current
    finally:
        _current = enclosing


def active_faults() -> AbstractContextManager[Any]:
    """Apply the injected faults that concern the inside of a running program."""
    return _NoHostAccess() if _current is not None and _current.forbids_host_access else nullcontext()
