"""The stages of a backward pass, which run one after another: each lets go of what it alone has read."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import Partition

# About a layer of a transformer. A session takes time to be made and called, and lets go of nothing while it runs.
_STAGE_NODES = 120
# What a size that is not known stands for where tensors are compared: the same whatever batch came first.
_NOMINAL_SIZE = 64


def in_stages(partition: Partition) -> list[Partition]:
    """Return parts of ``partition`` of about the same length, in the order in which they run.

    A part ends where the least has to be handed to those behind it.
    """
    nodes = _in_order(partition)
    handed = _bytes_handed_on(nodes)
    starts = [0]
    while len(nodes) - starts[-1] > 3 * _STAGE_NODES // 2:
        nearest = starts[-1] + _STAGE_NODES // 2
        candidates = range(nearest, min(nearest + _STAGE_NODES, len(nodes)))
        starts.append(min(candidates, key=handed.__getitem__))
    ends = [*starts[1:], len(nodes)]
    return [Partition(partition.id, nodes[start:end]) for start, end in zip(starts, ends, strict=True)]


def _in_order(partition: Partition) -> list[fx.Node]:
    """Return the nodes in the order of the graph, one of several results right behind what they are results of."""
    return sorted(sorted(partition.nodes), key=_source)


def _source(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def _bytes_handed_on(nodes: Sequence[fx.Node]) -> list[float]:
    """Return for each position what the nodes before it have computed for those from there on."""
    positions = {node: position for position, node in enumerate(nodes)}
    handed = [0.0] * len(nodes)
    for node, position in positions.items():
        last_use = max((positions[user] for user in node.users if user in positions), default=position)
        num_bytes = _num_bytes(node.meta.get("val"))
        for between in range(position + 1, last_use + 1):
            handed[between] += num_bytes
    return handed


def _num_bytes(fake: Any) -> float:
    if isinstance(fake, torch.Tensor):
        return math.prod(_nominal(dim) for dim in fake.shape) * fake.element_size()
    # Several results are not handed on together, but one by one. A number takes no memory.
    return math.inf if isinstance(fake, tuple | list) else 0


def _nominal(dim: Any) -> int:
    if isinstance(dim, int):
        return dim
    expression = dim.node.expr
    try:
        return int(expression.subs(dict.fromkeys(expression.free_symbols, _NOMINAL_SIZE)))
    except ZeroDivisionError:  # That size is one that never comes.
        return _NOMINAL_SIZE
