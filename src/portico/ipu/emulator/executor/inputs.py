"""What a program was compiled for, and what it is called with."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portico.ipu.emulator.custom_arguments import parser_of
from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.executor.layout import BatchLayout, map_structure
from portico.ipu.emulator.settings import settings

_WHY = (
    "This error occurred because the inputs passed at runtime don't match the inputs used to compile the model: a "
    "compiled program takes the same containers, types, shapes and constants on every call."
)


class InputFormat:
    """Containers, types and shapes that a program was compiled for.

    Args:
        arguments: Arguments by name at compilation.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._compiled = {
            name: map_structure(lambda leaf: leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf, value)
            for name, value in arguments.items()
        }

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments of another form.

        Raises:
            Error: Names the argument and what differs.
        """
        if arguments.keys() != self._compiled.keys():
            raise Error(
                f"Keys mismatch for the arguments: expected {list(self._compiled)} but got {list(arguments)}. {_WHY}"
            )
        for name, value in arguments.items():
            _compare(name, self._compiled[name], value)


class ModelInputs:
    """Binds the arguments of a call to the names of a model's ``forward``.

    Args:
        model: The model.
        layout: How combined batches are cut.
    """

    def __init__(self, model: nn.Module, layout: BatchLayout) -> None:
        self._signature = inspect.signature(model.forward)
        self._layout = layout

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as the device holds them, positional and by name; arguments left out stay out.

        Raises:
            AssertionError: If a batch cannot be cut into micro-batches.
            Error: If they do not fit, or a tensor requires a gradient.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Error(f"The arguments do not fit the model's forward: {error}") from error
        # What is left out and what is given as its default are one program.
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is not parameter.POSITIONAL_ONLY and bound.arguments.get(name, ()) is parameter.default:
                del bound.arguments[name]
        positional = tuple(map_structure(_on_device, value) for value in bound.args)
        named = {name: map_structure(_on_device, value) for name, value in bound.kwargs.items()}
        for argument, value in self.names(positional, named).items():
            for path, tensor in _named_tensors(argument, value):
                self._layout.check(path, tensor)
        return positional, named

    def names(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of :meth:`bind` by name."""
        names = [
            name
            for name, parameter in self._signature.parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        positional = {
            names[index] if index < len(names) else f"args[{index - len(names)}]": value
            for index, value in enumerate(args)
        }
        return {**positional, **kwargs}


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    parser = parser_of(value)
    if isinstance(value, Tensor):
        yield name, value
    elif parser is not None:
        yield from _named_tensors(name, list(parser.yieldTensors(value)))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_tensors(f"{name}[{key}]", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _named_tensors(f"{name}[{index}]", item)


def device_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the format that a device computes ``dtype`` in; index types are left to torch, which needs them wide."""
    if dtype is torch.bfloat16 or (dtype is torch.float64 and not settings.keeps_float64):
        return torch.float32
    return dtype


def _on_device(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.requires_grad:
        raise Error(
            "An input tensor to an IPU model can not have requires_grad set to True. If you need it, move it into "
            "the model as a parameter, or detach it."
        )
    return leaf.to(device_dtype(leaf.dtype))


def _compare(name: str, expected: Any, got: Any) -> None:
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        if expected.dtype != got.dtype:
            raise Error(f"Data type mismatch for {name}: expected {expected.dtype} but got {got.dtype}. {_WHY}")
        if expected.shape != got.shape:
            shapes = f"expected {list(expected.shape)} but got {list(got.shape)}"
            raise Error(f"Shape mismatch for {name}: {shapes}. {_WHY}")
        return
    if type(expected) is not type(got):
        types = f"expected {type(expected)} but got {type(got)}"
        raise Error(f"Type mismatch for {name}: {types}. {_WHY}")
    parser = parser_of(expected)
    if parser is not None:
        _compare(name, list(parser.yieldTensors(expected)), list(parser.yieldTensors(got)))
    elif isinstance(expected, Mapping):
        if expected.keys() != got.keys():
            raise Error(f"Keys mismatch for {name}: expected {list(expected)} but got {list(got)}. {_WHY}")
        for key, value in expected.items():
            _compare(f"{name}[{key}]", value, got[key])
    elif isinstance(expected, list | tuple):
        if len(expected) != len(got):
            raise Error(f"Length mismatch for {name}: expected {len(expected)} but got {len(got)}. {_WHY}")
        for index, (value, other) in enumerate(zip(expected, got, strict=True)):
            _compare(f"{name}[{index}]", value, other)
    elif expected != got:
        raise Error(f"Value mismatch for {name}: expected {expected} but got {got}. {_WHY}")
