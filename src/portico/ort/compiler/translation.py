"""From an FX graph of ATen operators to an ONNX model."""

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import fx

from portico.ort.compiler.graph import Graph, Value
from portico.ort.compiler.lowerings import LOWERINGS, Context
from portico.ort.torch_compat import unset_fake_temporarily

_ENDS = "portico"


def translate(
    module: fx.GraphModule,
    *,
    weights: Mapping[str, tuple[str, torch.Tensor]] | None = None,
    output_names: Sequence[str] = (),
) -> onnx.ModelProto:
    """Translate a graph of ATen operators, all of which have a lowering.

    The metadata of the model holds its :class:`Ends`, so that they survive in a file.

    Args:
        module: The graph.
        weights: Inputs to store in the model as weights: by input name, the name to store and the tensor.
        output_names: Names of the outputs, where they matter.
    """
    # torch.compile calls its backend under a FakeTensorMode; the constants of the model must be real.
    with unset_fake_temporarily():
        return _Translation(module, weights or {}, output_names).run()


@dataclass(frozen=True)
class Ends:
    """How to call a translated model.

    Args:
        input_orders: For each input the permutation that makes it contiguous, or ``None`` if it is contiguous.
        num_nodes: Nodes of the model before ONNX Runtime fuses them.
    """

    input_orders: list[tuple[int, ...] | None]
    num_nodes: int

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> "Ends":
        """Read what :func:`translate` wrote into the metadata of a model."""
        orders, num_nodes = json.loads(metadata[_ENDS])
        return cls([None if order is None else tuple(order) for order in orders], num_nodes)


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

    def run(self) -> onnx.ModelProto:
        for node in self.module.graph.nodes:
            getattr(self, node.op)(node)
        model = self.graph.model()
        onnx.helper.set_model_props(model, {_ENDS: json.dumps([self.input_orders, len(model.graph.node)])})
        return model

    def placeholder(self, node: fx.Node) -> None:
        if node.name in self.weights:
            self.values[node] = self.graph.weight(*self.weights[node.name])
            return
        fake = node.meta["val"]
        if not isinstance(fake, torch.Tensor):
            self.values[node] = self.graph.input(node.name, torch.int64, ())
            self.graph.declare_number(fake, self.values[node])
            self.input_orders.append(None)
            return
        order = memory_order(fake)
        self.input_orders.append(order)
        if order is None:
            self.values[node] = self.graph.input(node.name, fake.dtype, fake.shape)
            return
        stored = self.graph.input(node.name, fake.dtype, [fake.shape[axis] for axis in order])
        name = self.graph.transpose(stored, [order.index(axis) for axis in range(len(order))]).name
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
            self.values[node] = self.graph.size(out)
            return
        result = LOWERINGS[node.target](Context(self.graph, out, node), *args, **kwargs)
        self.values[node] = _typed(result, out)

    def output(self, node: fx.Node) -> None:
        results: Any = node.args[0]
        results = results if isinstance(results, tuple | list) else [results]
        names: Sequence[str | None] = self.output_names or [None] * len(results)
        for result, name in zip(results, names, strict=True):
            fake = result.meta["val"]
            self.graph.output(self.values[result], fake.dtype, fake.dim(), name)


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the permutation that makes a transposed tensor contiguous; ``None`` if it is, or if there is none."""
    if tensor.is_contiguous() or tensor.dim() < 2:
        return None
    strides = [hint(stride) for stride in tensor.stride()]
    order = tuple(sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))
    return order if tensor.permute(order).is_contiguous() else None


def hint(number: Any) -> int:
    """Return a number; for a symbolic one, its value in the tensors that the graph was traced with."""
    return number if isinstance(number, int) else int(number.node.hint)


def _typed(result: Any, out: Any) -> Any:
    """Annotate results with the dtype and shape of torch's fake results."""
    if isinstance(out, tuple | list):
        return tuple(_typed(value, fake) for value, fake in zip(result, out, strict=True))
    if result is None or out is None:
        return result
    return Value(result.name, out.dtype, tuple(out.shape))
