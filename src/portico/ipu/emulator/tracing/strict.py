"""A trace without data, which refuses what no compiler could compile."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode

from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.executor.layout import map_structure
from portico.ipu.emulator.tracing.losses import tensors_in

_REFUSED = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


def refuse_data_dependence(model: Callable[..., Any], arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Run ``model`` on tensors that have shapes and no values, twice.

    Args:
        model: The model.
        arguments: Positional and named arguments of a micro-batch.

    Raises:
        Error: If shapes or branches depend on values.

    Warns:
        UserWarning: If the two runs differ, as with Python's or numpy's random numbers: a device would go on with the
            ones it was compiled with.
    """
    first, second = _operations(model, arguments), _operations(model, arguments)
    if first != second:
        warnings.warn(
            "The model runs other operations, or other constants, each time it is called, as with random numbers of "
            "Python or numpy; a compiled program repeats those of its compilation. Draw with torch instead.",
            UserWarning,
            stacklevel=2,
        )


def _operations(model: Callable[..., Any], arguments: Any) -> list[str]:
    recorder = _Recorder()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        args, kwargs = map_structure(
            lambda leaf: mode.from_tensor(leaf.detach()) if isinstance(leaf, Tensor) else leaf, arguments
        )
    try:
        with torch.no_grad(), mode, recorder:
            model(*args, **kwargs)
    except _REFUSED as error:
        raise Error(
            f"The model cannot be compiled: a shape or a branch depends on the values of a tensor ({error}). Compute "
            "with fixed shapes, for example with `torch.where` instead of indexing by a mask."
        ) from error
    return recorder.operations


def with_values(function: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of the host, which may read values, also in a trace where tensors have none.

    Args:
        function: The function; in a trace it gets zeros.
        inputs: Its arguments.
        kwargs: Its named arguments.
    """
    mode = next((leaf.fake_mode for leaf in tensors_in((inputs, kwargs)) if isinstance(leaf, FakeTensor)), None)
    if mode is None:
        return function(*inputs, **kwargs)
    with unset_fake_temporarily():
        args, named = map_structure(_zeros, (inputs, kwargs))
        result = function(*args, **named)
    return map_structure(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, result)


def _zeros(leaf: Any) -> Any:
    return torch.zeros(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, Tensor) else leaf


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        constants = [argument for argument in args if isinstance(argument, bool | int | float)]
        self.operations.append(f"{func}{constants}")
        return func(*args, **(kwargs or {}))
