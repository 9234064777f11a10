"""An ONNX graph in the making: values, constants, shapes, and sizes that are known only when the graph runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import onnx
import sympy
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import fx

from portico.ort.torch_compat import size_functions, statically_known_true

Dim = int | torch.SymInt
# A number that is known when the graph is built, or a symbolic one.
Number = int | float | torch.SymInt | torch.SymFloat | torch.SymBool

OPSET = 20
IR_VERSION = 10
# The domain of ONNX Runtime's own operators, which its CPU and CUDA providers have kernels for.
MICROSOFT = "com.microsoft"
ONNX_TYPES = {
    torch.float64: TensorProto.DOUBLE,
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int16: TensorProto.INT16,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}
# Sizes are integers and never negative, so ONNX's `Div`, which truncates, rounds as Python's `//` does.
_SIZE_OPERATORS: dict[Any, str] = {
    sympy.Add: "Add",
    sympy.Mul: "Mul",
    sympy.Pow: "Pow",
    size_functions.FloorDiv: "Div",
    size_functions.Mod: "Mod",
    size_functions.PythonMod: "Mod",
    size_functions.Max: "Max",
    size_functions.Min: "Min",
}
# Larger constants are not compared with each other: `repr` of a whole weight would cost more than it saves.
_LARGEST_SHARED_CONSTANT = 64


@dataclass(frozen=True)
class Value:
    """One tensor of an ONNX graph."""

    name: str
    """Name in the graph."""
    dtype: torch.dtype | None = None
    """Torch dtype; ``None`` for an intermediate step of a lowering, where it is not needed."""
    shape: tuple[Any, ...] | None = None
    """Dimensions, symbolic ones as ``SymInt``; ``None`` as for ``dtype``."""

    @property
    def dims(self) -> tuple[Any, ...]:
        """The shape, or ``()`` where it is not known."""
        return self.shape or ()

    @property
    def is_float(self) -> bool:
        return self.dtype is not None and self.dtype.is_floating_point

    @property
    def rank(self) -> int:
        assert self.shape is not None, f"{self.name} is a step inside a lowering: its shape is not known"
        return len(self.shape)


# What a lowering gets for a size, and for a tensor or a number.
Size = Dim | Value
Operand = Number | Value


class Graph:
    """Collects the nodes of an ONNX graph; equal constants and sizes are made once.

    Attributes:
        is_standard: Whether operators of ONNX Runtime's own are to be avoided.
        node: The operator that is being lowered.
        out: Its fake result, with the dtype and shape that the result must have.
    """

    node: fx.Node
    out: Any

    def __init__(self, *, is_standard: bool = False) -> None:
        self.is_standard = is_standard
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._numbers = count(1)
        self._made: dict[Any, Value] = {}
        self._size_sources: dict[Any, Callable[[], Value]] = {}
        self._sizes: dict[Any, Value] = {}
        self._op_types: dict[str, str] = {}

    def op(
        self,
        op_type: str,
        *inputs: Value | None,
        outputs: int = 1,
        domain: str = "",
        dtype: torch.dtype | None = None,
        shape: tuple[Any, ...] | None = None,
        **attributes: float | str | Sequence[int] | None,
    ) -> Any:
        """Add a node and return its output, or a tuple if ``outputs`` is more than one.

        Inputs and attributes that are ``None`` are left out. Give the ``dtype`` and ``shape`` of the outputs where a
        later step of the lowering reads them.
        """
        values = [Value(f"{op_type}_{next(self._numbers)}", dtype, shape) for _ in range(outputs)]
        names = [value.name if value is not None else "" for value in inputs]
        while names and not names[-1]:
            names.pop()
        node = helper.make_node(op_type, names, [value.name for value in values], domain=domain)
        # Sorted, as `make_node` does, whose annotation of its keywords fits no attribute.
        given = sorted((name, value) for name, value in attributes.items() if value is not None)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in given)
        self.nodes.append(node)
        self._op_types.update((value.name, op_type) for value in values)
        return values[0] if outputs == 1 else tuple(values)

    def constant(self, data: float | Sequence[float] | torch.Tensor, dtype: torch.dtype) -> Value:
        """Return a constant: a number, a list of numbers, or a tensor."""
        tensor = torch.as_tensor(data, dtype=dtype)
        if tensor.numel() > _LARGEST_SHARED_CONSTANT:
            return self.initializer(tensor)
        # By representation, since 0.0 and -0.0 are equal and differ.
        key = ("constant", dtype, repr(tensor.tolist()))
        if key not in self._made:
            self._made[key] = self.initializer(tensor)
        return self._made[key]

    def axes(self, *axes: int) -> Value:
        """Return axes as an input, which is how operators take them since opset 13."""
        return self.constant(list(axes), torch.int64)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype is dtype:
            return value
        return self.op("Cast", value, to=ONNX_TYPES[dtype], dtype=dtype, shape=value.shape)

    def scalar(self, number: Operand, dtype: torch.dtype) -> Value:
        """Return a number, symbolic or not, as a tensor without dimensions."""
        if isinstance(number, Value):
            return self.cast(number, dtype)
        if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.cast(self.size(number), dtype)
        return self.constant(number, dtype)

    def operand(self, number: Operand) -> Value:
        """Return a tensor or a number in the dtype of the result: ONNX promotes nothing by itself."""
        return self.scalar(number, self.out.dtype)

    def vector(self, numbers: Sequence[Size]) -> Value:
        """Return numbers, symbolic or not, as a vector of int64."""
        known = [number for number in numbers if isinstance(number, int)]
        if len(known) == len(numbers):
            return self.constant(known, torch.int64)
        key = ("vector", *(number.name if isinstance(number, Value) else str(number) for number in numbers))
        if key not in self._made:
            parts = [self.op("Unsqueeze", self.scalar(number, torch.int64), self.axes(0)) for number in numbers]
            self._made[key] = self.op("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
        return self._made[key]

    def reshape(self, value: Value, dims: Sequence[Size]) -> Value:
        """Return ``value`` in another shape, or ``value`` itself if the shape is known to be the same."""
        if value.shape is not None and same_shape(value.shape, dims):
            return value
        symbolic = [dim for dim in dims if not isinstance(dim, int)]
        if len(symbolic) == 1 and all(isinstance(dim, Value | torch.SymInt) or dim > 0 for dim in dims):
            # A single symbolic dimension costs no node: -1, which `Reshape` infers, takes its place.
            return self.op("Reshape", value, self.axes(*(dim if isinstance(dim, int) else -1 for dim in dims)))
        # Without `allowzero`, ONNX reads a 0 as "copy the input's dimension"; empty tensors mean a real 0.
        zero = any(isinstance(dim, int) and dim == 0 for dim in dims)
        return self.op("Reshape", value, self.vector(dims), allowzero=int(zero) if zero else None)

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        if list(permutation) == list(range(len(permutation))):
            return value
        return self.op("Transpose", value, perm=list(permutation))

    def find_transposed(self, value: Value, permutation: Sequence[int]) -> Value | None:
        """Return the input of the ``Transpose`` that made ``value``, if it has this ``permutation``."""
        made = next((node for node in self.nodes if value.name in node.output), None)
        if made is None or made.op_type != "Transpose" or list(made.attribute[0].ints) != list(permutation):
            return None
        return Value(made.input[0])

    def input(self, name: str, dtype: torch.dtype, shape: Sequence[Dim]) -> Value:
        """Declare an input of the graph."""
        dims = [dim if isinstance(dim, int) else str(dim) for dim in shape]
        self.inputs.append(helper.make_tensor_value_info(name, ONNX_TYPES[dtype], dims))
        value = Value(name, dtype, tuple(shape))
        for axis, dim in enumerate(shape):
            expression = _expression(dim)
            if not isinstance(expression, sympy.Integer):
                self._size_sources.setdefault(expression, partial(self.dimension, value, axis))
        return value

    def output(self, value: Value, dtype: torch.dtype, rank: int, name: str | None = None) -> None:
        """Declare an output of the graph, called ``name`` if one is given."""
        is_taken = value.name in {output.name for output in self.outputs}
        if name is not None:
            self.nodes.append(helper.make_node("Identity", [value.name], [name]))
        elif is_taken or self._op_types.get(value.name) in (None, "Transpose"):
            # ONNX requires a separate node for an output that is also an input, a constant or another output, and
            # ONNX Runtime fuses a transpose into the product that reads it even when it is an output as well.
            name = self.op("Identity", value).name
        else:
            name = value.name
        self.outputs.append(helper.make_tensor_value_info(name, ONNX_TYPES[dtype], [None] * rank))

    def model(self) -> onnx.ModelProto:
        """Return the model, without unread constants and nodes, and without trailing outputs that are not read."""
        used = {value.name for value in self.outputs}
        nodes = []
        for node in reversed(self.nodes):
            if used.isdisjoint(node.output):
                continue
            # The sizes of a split name all its parts.
            while node.output[-1] not in used and node.op_type != "Split":
                node.output.pop()
            used.update(node.input)
            nodes.append(node)
        constants = [constant for constant in self.initializers if constant.name in used]
        graph = helper.make_graph(nodes[::-1], "portico", self.inputs, self.outputs, constants)
        opsets = [helper.make_opsetid("", OPSET), *([] if self.is_standard else [helper.make_opsetid(MICROSOFT, 1)])]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="portico")

    def declare_number(self, number: Number, value: Value) -> None:
        """Register an input that is a symbolic number itself."""
        self._sizes[_expression(number)] = value

    def size(self, number: "Number | sympy.Basic") -> Value:
        """Return a symbolic number as an int64 tensor without dimensions, computed from the shapes of the inputs.

        Raises:
            KeyError: If it depends on a symbol that no input has.
        """
        expression = _expression(number)
        if expression in self._sizes:
            return self._sizes[expression]
        if isinstance(expression, sympy.Integer):
            size = self.constant(int(expression), torch.int64)
        elif expression in self._size_sources:
            size = self._size_sources[expression]()
        elif expression.func in _SIZE_OPERATORS:
            size, *others = map(self.size, expression.args)
            for other in others:
                size = self.op(_SIZE_OPERATORS[expression.func], size, other, dtype=torch.int64, shape=())
        else:
            raise KeyError(f"no input of the graph determines the size {expression}")
        self._sizes[expression] = size
        return size

    def dimension(self, value: Value, axis: int) -> Value:
        """Return the size of one dimension, as the graph computes it."""
        size = self.op("Shape", value, start=axis, end=axis + 1)
        return self.op("Squeeze", size, self.axes(0), dtype=torch.int64, shape=())

    def initializer(self, tensor: torch.Tensor, name: str | None = None) -> Value:
        """Store a tensor in the model, under ``name`` if one is given."""
        tensor = tensor.detach().cpu().contiguous()
        name = f"constant_{next(self._numbers)}" if name is None else name
        if tensor.dtype is torch.bfloat16:
            # NumPy has no bfloat16.
            raw = tensor.view(torch.int16).numpy().tobytes()
            proto = helper.make_tensor(name, TensorProto.BFLOAT16, list(tensor.shape), raw, raw=True)
        else:
            proto = numpy_helper.from_array(np.asarray(tensor.numpy()), name)
        self.initializers.append(proto)
        return Value(name, tensor.dtype, tuple(tensor.shape))


def _expression(number: "Number | sympy.Basic") -> Any:
    if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number.node.expr
    return sympy.sympify(number)


def same_shape(first: Sequence[Size], second: Sequence[Size]) -> bool:
    """Return whether two shapes are known to be equal for every value of their symbols."""
    if len(first) != len(second) or any(isinstance(dim, Value) for dim in (*first, *second)):
        return False
    return all(statically_known_true(a == b) for a, b in zip(first, second, strict=True))
