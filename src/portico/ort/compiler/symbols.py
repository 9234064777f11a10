"""Sizes that are known only when a graph runs, computed inside it from the shapes of its inputs."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from portico.ort.compiler.value import Value

# Expressions of sizes, which are integers and not negative, so that ONNX's `Div` rounds as Python's `//` does.
_OPERATORS: dict[Any, str] = {
    sympy.Add: "Add",
    sympy.Mul: "Mul",
    FloorDiv: "Div",
    Mod: "Mod",
    PythonMod: "Mod",
    Max: "Max",
    Min: "Min",
}


class Nodes(Protocol):
    """What is asked of a graph here."""

    def op(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Any:
        """Add a node and return its output."""

    def constant(self, data: Any, dtype: torch.dtype) -> Value:
        """Return a constant."""

    def axes(self, *axes: int) -> Value:
        """Return axes as an input."""


class Symbols:
    """Knows where the number behind a symbol can be had.

    Args:
        graph: The graph to add the nodes to.
    """

    def __init__(self, graph: Nodes) -> None:
        self._graph = graph
        self._sources: dict[Any, Callable[[], Value]] = {}
        self._made: dict[Any, Value] = {}

    def declare(self, value: Value) -> None:
        """Take note of the symbols, and expressions of them, among the dimensions of an input."""
        for axis, dim in enumerate(value.shape or ()):
            expression = _expression(dim)
            if not isinstance(expression, sympy.Integer):
                self._sources.setdefault(expression, partial(self._dimension, value, axis))

    def declare_number(self, number: Any, value: Value) -> None:
        """Take note of an input that is a symbolic number itself."""
        self._made[_expression(number)] = value

    def value(self, number: Any) -> Value:
        """Return a symbolic number as an int64 tensor without dimensions.

        Raises:
            KeyError: If no input tells one of its symbols.
        """
        return self._value(_expression(number))

    def _value(self, expression: Any) -> Value:
        if expression not in self._made:
            self._made[expression] = self._make(expression)
        return self._made[expression]

    def _make(self, expression: Any) -> Value:
        if isinstance(expression, sympy.Integer):
            return self._graph.constant(int(expression), torch.int64)
        if expression in self._sources:
            return self._sources[expression]()
        operator = _OPERATORS.get(expression.func)
        if operator is None:
            raise KeyError(f"no input of the graph tells the size {expression}")
        first, *others = (self._value(argument) for argument in expression.args)
        for other in others:
            first = Value(self._graph.op(operator, first, other).name, torch.int64, ())
        return first

    def _dimension(self, value: Value, axis: int) -> Value:
        graph = self._graph
        size = graph.op("Shape", value, start=axis, end=axis + 1)
        return Value(graph.op("Squeeze", size, graph.axes(0)).name, torch.int64, ())


def _expression(number: Any) -> Any:
    symbolic = isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)
    return number.node.expr if symbolic else sympy.sympify(number)
