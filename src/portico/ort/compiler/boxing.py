"""Graphs that let go of their inputs while they run."""

from collections.abc import Callable
from typing import Any

from torch import fx


def taking_list(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return calls of ``module`` that take its inputs in one list, which they empty; ``module`` is changed.

    So an input is freed after its last use, if the list had the only reference to it: what a forward saved, while the
    backward proceeds. Torch's later versions generate such code too; the earliest that is supported does not.
    """
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    with graph.inserting_before(next(iter(graph.nodes))):
        inputs = graph.placeholder("inputs")
        taken = [graph.call_method("pop", (inputs, 0)) for _ in placeholders]
    for placeholder, value in zip(placeholders, taken, strict=True):
        placeholder.replace_all_uses_with(value)
        graph.erase_node(placeholder)
    module.recompile()

    def call(inputs: list[Any]) -> Any:
        return module(inputs)

    # The sign by which torch knows such functions.
    call._boxed_call = True  # type: ignore[attr-defined]
    return call
