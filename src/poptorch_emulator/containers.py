"""Nested containers of tensors, as models take and return them, and the user's own classes among them."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn import Module

from poptorch_emulator.errors import Error


class ICustomArgParser(ABC):
    """Takes the tensors out of objects of a class, and rebuilds such objects from tensors."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[Tensor]:
        """Yield every tensor of an object, always in the same order."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """Return an object like ``original_structure`` with other tensors, in the order of :meth:`yieldTensors`."""


_parsers: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(argument_type: type, parser: ICustomArgParser) -> None:
    """Let programs take and return objects of a class; subclasses are not included."""
    _parsers[argument_type] = parser


def parser_of(value: object) -> ICustomArgParser | None:
    return _parsers.get(type(value))


def map_structure(function: Callable[[Any], Any], value: object) -> Any:
    """Apply ``function`` to the leaves of nested containers, and rebuild them.

    Containers are lists, tuples, named tuples, mappings, dataclasses and objects of registered classes.

    Raises:
        Error: If another object holds tensors, which could not be cut or joined.
    """
    parser = parser_of(value)
    if parser is not None:
        return parser.reconstruct(value, iter([function(leaf) for leaf in parser.yieldTensors(value)]))
    if isinstance(value, Mapping):
        return _rebuilt(value, {key: map_structure(function, item) for key, item in value.items()})
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: map_structure(function, getattr(value, field.name)) for field in fields(value)}
        )
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_structure(function, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_structure(function, item) for item in value)
    _refuse_hidden_tensors(value)
    return function(value)


def map_tensors(function: Callable[[Tensor], Any], value: object) -> Any:
    """Apply ``function`` to the tensors of nested containers, and keep other leaves; see :func:`map_structure`."""
    return map_structure(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)


def leaves_of(value: object) -> list[Any]:
    leaves: list[Any] = []
    map_structure(leaves.append, value)
    return leaves


def tensors_in(value: object) -> Iterator[Tensor]:
    return (tensor for _, tensor in iterate_tensors("", value))


def iterate_tensors(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of the argument ``name`` with names like ``name[key][0]``."""
    parser = parser_of(value)
    if isinstance(value, Tensor):
        yield name, value
    elif parser is not None:
        yield from iterate_tensors(name, list(parser.yieldTensors(value)))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from iterate_tensors(f"{name}[{key}]", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from iterate_tensors(f"{name}[{index}]", item)


def _rebuilt(mapping: Any, items: dict[Any, Any]) -> Any:
    kind: Any = type(mapping)
    # The `ModelOutput` of transformers is a dataclass that takes its items by name.
    if hasattr(mapping, "to_tuple"):
        return kind(**items)
    return kind(mapping.default_factory, items) if isinstance(mapping, defaultdict) else kind(items)


def _refuse_hidden_tensors(leaf: object) -> None:
    held = leaf if isinstance(leaf, set | frozenset) else getattr(leaf, "__dict__", {}).values()
    if not isinstance(leaf, Tensor | Module) and any(isinstance(value, Tensor) for value in held):
        raise Error(
            f"A {type(leaf).__name__} holds tensors, which a program cannot find; use lists, tuples, dicts or "
            "dataclasses, or register its class with poptorch.registerCustomArgParser."
        )
