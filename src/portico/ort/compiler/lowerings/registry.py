"""The table of lowerings: which function translates which ATen operator."""

from collections.abc import Callable
from functools import partial
from typing import Any

from portico.ort.compiler.graph import Graph, Value
from portico.ort.torch_compat import tree_map_only

Lowering = Callable[..., Any]
LOWERINGS: dict[object, Lowering] = {}


def lowers(*targets: object, **options: str | int) -> Callable[[Lowering], Lowering]:
    """Register a function as the lowering of operators.

    The function is called with the graph, which holds the operator in ``node`` and its fake result in ``out``; with
    the operator's arguments, in which tensors and symbolic numbers are a
    :class:`~portico.ort.compiler.graph.Value`; and with ``options``. It returns a ``Value``, or a tuple of them.
    """

    def register(lowering: Lowering) -> Lowering:
        for target in targets:
            assert target not in LOWERINGS, f"{target} has a lowering already"
            LOWERINGS[target] = partial(lowering, **options)
        return lowering

    return register


def lowers_along(*targets: object, **options: str | int) -> Callable[[Lowering], Lowering]:
    """Register a function as the lowering of operators along dimensions, which 0-d tensors reach as vectors.

    Torch accepts the dimensions 0 and -1 of a 0-d tensor; ONNX does not.
    """

    def register(lowering: Lowering) -> Lowering:
        lowers(*targets, **options)(partial(_lower_vectors, lowering))
        return lowering

    return register


def _lower_vectors(lowering: Lowering, graph: Graph, x: Value, *args: object, **kwargs: object) -> Any:
    if x.rank:
        return lowering(graph, x, *args, **kwargs)

    def vector(value: Value) -> Value:
        return value if value.rank else graph.op("Unsqueeze", value, graph.axes(0), dtype=value.dtype, shape=(1,))

    results = lowering(graph, vector(x), *tree_map_only(Value, vector, args), **kwargs)
    return tree_map_only(Value, lambda value: graph.op("Reshape", value, graph.axes()), results)
