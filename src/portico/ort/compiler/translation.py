"""From an FX graph of ATen operators to an ONNX model."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from portico.ort.compiler.graph import Graph
from portico.ort.compiler.lowerings import LOWERINGS, Context
from portico.ort.compiler.value import Value


@dataclass(frozen=True)
class Translated:
    """An ONNX model with what a caller has to know about its ends.

    Args:
        model: The model.
        input_orders: For each input the order of dimensions in which it lies in memory without gaps, where that is
            not the order it has; ``None`` otherwise.
        output_dtypes: Torch dtypes of the outputs.
    """

    model: onnx.ModelProto
    input_orders: list[tuple[int, ...] | None]
    output_dtypes: list[torch.dtype]


def translate(
    module: fx.GraphModule,
    *,
    weights: Mapping[str, tuple[str, torch.Tensor]] | None = None,
    output_names: Sequence[str] = (),
) -> Translated:
    """Translate a module all of whose operators have a lowering.

    Args:
        module: Graph of ATen operators.
        weights: Inputs that become weights stored in the model, by name: the name to store and the tensor.
        output_names: Names of the outputs, where they matter.
    """
    # A compiler runs where tensors are fake; the constants of the model are real.
    with unset_fake_temporarily():
        return _Translation(module, weights or {}, output_names).run()


class _Translation:
    def __init__(
        self, module: fx.GraphModule, weights: Mapping[str, tuple[str, torch.Tensor]], output_names: Sequence[str]
    ) -> None:
        self.module = module
        self.weights = weights
        self.output_names = output_names
        self.graph = Graph()
        self.values: dict[fx.Node, Any] = {}
        self.input_orders: list[tuple[int, ...] | None] = []
        self.output_dtypes: list[torch.dtype] = []

    def run(self) -> Translated:
        for node in self.module.graph.nodes:
            getattr(self, node.op)(node)
        return Translated(self.graph.model(), self.input_orders, self.output_dtypes)

    def placeholder(self, node: fx.Node) -> None:
        if node.name in self.weights:
            self.values[node] = self.graph.weight(*self.weights[node.name])
            return
        fake = node.meta["val"]
        if not isinstance(fake, torch.Tensor):
            self.values[node] = self.graph.input(node.name, torch.int64, ())
            self.graph.symbols.declare_number(fake, self.values[node])
            self.input_orders.append(None)
            return
        order = memory_order(fake)
        self.input_orders.append(order)
        if order is None:
            self.values[node] = self.graph.input(node.name, fake.dtype, fake.shape)
            return
        lying = self.graph.input(node.name, fake.dtype, [fake.shape[axis] for axis in order])
        name = self.graph.transpose(lying, [order.index(axis) for axis in range(len(order))]).name
        self.values[node] = Value(name, fake.dtype, tuple(fake.shape))

    def get_attr(self, node: fx.Node) -> None:
        tensor = getattr(self.module, str(node.target))
        self.values[node] = self.graph.constant(tensor, tensor.dtype)

    def call_function(self, node: fx.Node) -> None:
        args: Any = fx.node.map_arg(node.args, self.values.__getitem__)
        kwargs: Any = fx.node.map_arg(node.kwargs, self.values.__getitem__)
        if node.target is operator.getitem:
            self.values[node] = args[0][args[1]]
            return
        out = node.meta["val"]
        if isinstance(out, torch.SymInt):
            self.values[node] = self.graph.symbols.value(out)
            return
        result = LOWERINGS[node.target](Context(self.graph, out), *args, **kwargs)
        self.values[node] = _typed(result, out)

    def output(self, node: fx.Node) -> None:
        results: Any = node.args[0]
        results = results if isinstance(results, tuple | list) else [results]
        names: Sequence[str | None] = self.output_names or [None] * len(results)
        for result, name in zip(results, names, strict=True):
            fake = result.meta["val"]
            self.output_dtypes.append(fake.dtype)
            self.graph.output(self.values[result], fake.dtype, fake.dim(), name)


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the order of dimensions in which a transposed tensor lies in memory; ``None`` if it is contiguous."""
    if tensor.is_contiguous() or tensor.dim() < 2:
        return None
    strides = [_hint(stride) for stride in tensor.stride()]
    order = tuple(sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))
    return order if tensor.permute(order).is_contiguous() else None


def _hint(number: Any) -> int:
    return number if isinstance(number, int) else int(number.node.hint)


def _typed(result: Any, out: Any) -> Any:
    """Give results the dtype and shape that torch says they have."""
    if isinstance(out, tuple | list):
        return tuple(_typed(value, fake) for value, fake in zip(result, out, strict=True))
    if result is None or out is None:
        return result
    return Value(result.name, out.dtype, tuple(out.shape))
