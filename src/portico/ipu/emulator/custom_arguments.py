"""Arguments and results of the user's own classes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.nn import Module

from portico.ipu.emulator.errors import Error


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
