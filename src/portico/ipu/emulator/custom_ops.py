"""Operations of the user: compiled code on a device, Python functions here."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from portico.ipu.emulator.errors import Error

_functions: dict[tuple[str, str], Callable[..., Any]] = {}


def register_custom_op(name: str, domain: str, function: Callable[..., Any]) -> None:
    """Let :func:`custom_op` compute an operation by a Python function; real devices have compiled code of that name.

    Args:
        name: Of the operation.
        domain: Of the operation.
        function: Gets the inputs and, by name, the attributes; returns a tensor, or several.
    """
    _functions[domain, name] = function


def custom_op(
    inputs: list[Tensor] | tuple[Tensor, ...],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: list[Tensor] | tuple[Tensor, ...],
    attributes: dict[str, Any] | None = None,
) -> list[Tensor]:
    """Return the outputs of an operation of the user.

    Args:
        inputs: Its inputs.
        name: Its name.
        domain: Its domain.
        domain_version: Kept.
        example_outputs: Tensors of the shapes and types that come out.
        attributes: Constants.

    Raises:
        Error: If there is no such operation, or it returns something else than ``example_outputs`` says.
    """
    function = _functions.get((domain, name))
    if function is None:
        raise Error(
            f"There is no operation {name!r} of the domain {domain!r}: compiled code does not run on the emulator. "
            "Give it a Python function with `portico.ipu.emulator.register_custom_op`, or use torch's operations."
        )
    result = function(*inputs, **(attributes or {}))
    outputs = [result] if isinstance(result, Tensor) else list(result)
    expected, got = ([(tuple(one.shape), one.dtype) for one in some] for some in (example_outputs, outputs))
    if expected != got:
        raise Error(f"The operation {name!r} returned {got}, but its `example_outputs` are {expected}.")
    return outputs
