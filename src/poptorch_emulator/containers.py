"""Arguments and results of the user's own classes."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn import Module

from poptorch_emulator.errors import Error


class ICustomArgParser(ABC):
    """Takes the tensors out of objects of a class, and makes such objects of tensors."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[Tensor]:
        """Yield every tensor of an object, always in the same order."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """Return an object like ``original_structure`` with other tensors, in the order of :meth:`yieldTensors`."""


_parsers: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(argument_type: type, parser: ICustomArgParser) -> None:
    """Let programs take and return objects of a class.

    Args:
        argument_type: The class, without its subclasses.
        parser: Knows the tensors of its objects.
    """
    _parsers[argument_type] = parser


def parser_of(value: Any) -> ICustomArgParser | None:
    """Return what knows the tensors of an object, if something was registered for its class."""
    return _parsers.get(type(value))


def refuse_hidden_tensors(leaf: Any) -> None:
    """Refuse an object that holds tensors and is no container that programs know.

    Raises:
        Error: Names its class.
    """
    held = leaf if isinstance(leaf, set | frozenset) else getattr(leaf, "__dict__", {}).values()
    if not isinstance(leaf, Tensor | Module) and any(isinstance(value, Tensor) for value in held):
        raise Error(
            f"A {type(leaf).__name__} holds tensors, which a program cannot find; use lists, tuples, dicts or "
            "dataclasses, or register its class with poptorch.registerCustomArgParser."
        )


def map_structure(function: Any, value: Any) -> Any:
    """Apply ``function`` to the leaves of nested containers, and rebuild them.

    Containers are lists, tuples, named tuples, mappings, dataclasses and objects of registered classes.

    Raises:
        Error: If a leaf holds tensors that nothing could cut or join.
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
    refuse_hidden_tensors(value)
    return function(value)


def _rebuilt(mapping: Any, items: dict[Any, Any]) -> Any:
    kind: Any = type(mapping)
    # A `ModelOutput` is a dataclass; other mappings are made from a dict.
    if hasattr(mapping, "to_tuple"):
        return kind(**items)
    return kind(mapping.default_factory, items) if isinstance(mapping, defaultdict) else kind(items)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
