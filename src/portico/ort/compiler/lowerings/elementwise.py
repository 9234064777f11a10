"""Element-wise operators: arithmetic, comparisons and logic, activation functions and their derivatives."""

import math
from typing import Any

import torch

from portico.ort.compiler.graph import MICROSOFT, Graph, Operand, Value
from portico.ort.compiler.lowerings.creation import full_like
from portico.ort.compiler.lowerings.registry import lowers

aten = torch.ops.aten

# ONNX calls these as ATen does.
_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log", "neg", "reciprocal",
    "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


@lowers(aten.logical_and.default, op_type="And")
@lowers(aten.logical_or.default, op_type="Or")
@lowers(aten.logical_xor.default, op_type="Xor")
@lowers(aten.logical_not.default, op_type="Not")
# Torch emits `true_divide` for a quotient of numbers, such as a mean over a symbolic number of rows.
@lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, op_type="Div")
@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar, op_type="Pow")
def apply_to_operands(graph: Graph, *operands: Operand, op_type: str) -> Value:
    return graph.op(op_type, *map(graph.operand, operands))


for _name in _UNARY:
    lowers(getattr(aten, _name).default, op_type=_name.capitalize())(apply_to_operands)


@lowers(aten.ceil.default, op_type="Ceil")
@lowers(aten.floor.default, op_type="Floor")
@lowers(aten.round.default, op_type="Round")
def round_floats(graph: Graph, x: Value, *, op_type: str) -> Value:
    # ONNX defines rounding for floats only; an integer is rounded already.
    return graph.op(op_type, x) if x.is_float else x


@lowers(aten.relu.default)
def relu(graph: Graph, x: Value) -> Value:
    return graph.op("Relu", x) if x.is_float else graph.op("Max", x, graph.operand(0))


@lowers(aten.threshold_backward.default)
def threshold_backward(graph: Graph, grad: Value, x: Value, threshold: Operand) -> Value:
    is_below = graph.op("LessOrEqual", x, graph.operand(threshold))
    return graph.op("Where", is_below, graph.operand(0), grad)


@lowers(aten.sign.default)
def sign(graph: Graph, x: Value) -> Value:
    """Return 1, 0 or -1, and 0 for NaN, for which ONNX Runtime's ``Sign`` returns NaN."""
    if graph.out.dtype is torch.bool:
        return x
    zero = graph.operand(0)
    is_positive, is_negative = graph.op("Greater", x, zero), graph.op("Greater", zero, x)
    return graph.op("Sub", graph.operand(is_positive), graph.operand(is_negative))


@lowers(aten.trunc.default)
def trunc(graph: Graph, x: Value) -> Value:
    """Round towards zero, keeping the sign of a zero; an integer is rounded already."""
    if not x.is_float:
        return x
    is_negative = graph.op("Less", x, graph.operand(0))
    return graph.op("Where", is_negative, graph.op("Ceil", x), graph.op("Floor", x))


@lowers(aten.rsqrt.default)
def rsqrt(graph: Graph, x: Value) -> Value:
    return graph.op("Reciprocal", graph.op("Sqrt", graph.operand(x)))


@lowers(aten.log1p.default)
def log1p(graph: Graph, x: Value) -> Value:
    """Return ``log(1 + x)`` without the rounding of ``1 + x``.

    ``log(u) * x / (u - 1)`` with ``u = 1 + x``: the errors of numerator and denominator cancel (Kahan; theorem 4 of
    Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991).
    """
    x = graph.operand(x)
    one = graph.operand(1)
    total = graph.op("Add", x, one)
    kept = graph.op("Sub", total, one)
    log = graph.op("Log", total)
    corrected = graph.op("Mul", log, graph.op("Div", x, kept))
    corrected = graph.op("Where", graph.op("Equal", kept, graph.operand(0)), x, corrected)
    return graph.op("Where", graph.op("IsInf", total), log, corrected)


@lowers(aten.mul.Tensor, aten.mul.Scalar, of_booleans="And", of_numbers="Mul")
@lowers(aten.maximum.default, of_booleans="Or", of_numbers="Max")
@lowers(aten.minimum.default, of_booleans="And", of_numbers="Min")
@lowers(aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, of_booleans="And", of_numbers="BitwiseAnd")
@lowers(aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, of_booleans="Or", of_numbers="BitwiseOr")
@lowers(aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar, of_booleans="Xor", of_numbers="BitwiseXor")
def binary(graph: Graph, x: Operand, y: Operand, *, of_booleans: str, of_numbers: str) -> Value:
    op_type = of_booleans if graph.out.dtype is torch.bool else of_numbers
    return graph.op(op_type, graph.operand(x), graph.operand(y))


@lowers(aten.add.Tensor, aten.add.Scalar, op_type="Add")
@lowers(aten.sub.Tensor, aten.sub.Scalar, op_type="Sub")
def add_or_sub(graph: Graph, x: Operand, y: Operand, alpha: Operand = 1, *, op_type: str) -> Value:
    x, y = graph.operand(x), graph.operand(y)
    if graph.out.dtype is torch.bool:
        return graph.op("Or", x, y)
    is_scaled = not isinstance(alpha, int | float) or alpha != 1
    return graph.op(op_type, x, graph.op("Mul", y, graph.operand(alpha)) if is_scaled else y)


@lowers(aten.pow.Tensor_Scalar)
def power_of_number(graph: Graph, x: Value, exponent: Operand) -> Value:
    """Return roots, squares and their reciprocals as ATen does: ``Pow`` differs at -0.0 and ``-inf``."""
    if not isinstance(exponent, int | float) or not (exponent == 2 or (x.is_float and exponent in (0.5, -0.5, -2))):
        return apply_to_operands(graph, x, exponent, op_type="Pow")
    x = graph.operand(x)
    result = graph.op("Mul", x, x) if abs(exponent) == 2 else graph.op("Sqrt", x)
    return graph.op("Reciprocal", result) if exponent < 0 else result


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(graph: Graph, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    result = graph.operand(x)
    if low is not None:
        result = graph.op("Max", result, graph.operand(low))
    return result if high is None else graph.op("Min", result, graph.operand(high))


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_rounded(graph: Graph, x: Operand, y: Operand, rounding_mode: str | None = None) -> Value:
    x, y = graph.operand(x), graph.operand(y)
    if rounding_mode == "floor":
        return _floor_of_floats(graph, x, y) if x.is_float else _floor_of_integers(graph, x, y)
    quotient: Value = graph.op("Div", x, y, dtype=x.dtype)
    return trunc(graph, quotient) if rounding_mode else quotient


def _floor_of_floats(graph: Graph, x: Value, y: Value) -> Value:
    """Divide ``x`` less its remainder, as ATen's ``div_floor`` does: ``x / y`` itself may round up to an integer."""
    rest, is_below = _rest(graph, x, y)
    quotient = graph.op("Div", graph.op("Sub", x, rest), y)
    floor = graph.op("Round", graph.op("Sub", quotient, graph.operand(is_below)))
    is_zero = graph.op("Equal", y, graph.operand(0))
    return graph.op("Where", is_zero, graph.op("Div", x, y), floor)


def _floor_of_integers(graph: Graph, x: Value, y: Value) -> Value:
    """Divide and round down; ONNX rounds a quotient of integers towards zero."""
    remains = graph.op("Not", graph.op("Equal", graph.op("Mod", x, y), graph.operand(0)))
    correction = graph.op("And", remains, _differ_in_sign(graph, x, y))
    return graph.op("Sub", graph.op("Div", x, y), graph.operand(correction))


@lowers(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(graph: Graph, x: Operand, y: Operand) -> Value:
    x, y = graph.operand(x), graph.operand(y)
    if not x.is_float:
        return graph.op("Mod", x, y)
    rest, is_below = _rest(graph, x, y)
    return graph.op("Where", is_below, graph.op("Add", rest, y), rest)


def _rest(graph: Graph, x: Value, y: Value) -> tuple[Value, Value]:
    """Return the remainder with the sign of the dividend, and whether the sign of the divisor differs."""
    rest = graph.op("Mod", x, y, fmod=1)
    remains = graph.op("Not", graph.op("Equal", rest, graph.operand(0)))
    return rest, graph.op("And", remains, _differ_in_sign(graph, rest, y))


def _differ_in_sign(graph: Graph, x: Value, y: Value) -> Value:
    zero = graph.operand(0)
    return graph.op("Xor", graph.op("Less", x, zero), graph.op("Less", y, zero))


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(graph: Graph, x: Operand, y: Operand) -> Value:
    x, y = graph.operand(x), graph.operand(y)
    if x.is_float:
        return graph.op("Mod", x, y, fmod=1)
    # ONNX Runtime computes fmod of integers in float64, which cannot represent all int64.
    return graph.op("Sub", x, graph.op("Mul", graph.op("Div", x, y), y))


# ---- Comparisons and logic ----


@lowers(aten.eq.Tensor, aten.eq.Scalar, op_type="Equal")
@lowers(aten.ge.Tensor, aten.ge.Scalar, op_type="GreaterOrEqual")
@lowers(aten.gt.Tensor, aten.gt.Scalar, op_type="Greater")
@lowers(aten.le.Tensor, aten.le.Scalar, op_type="LessOrEqual")
@lowers(aten.lt.Tensor, aten.lt.Scalar, op_type="Less")
def compare(graph: Graph, x: Operand, y: Operand, *, op_type: str) -> Value:
    dtype = torch.result_type(_sample(x), _sample(y))
    # ONNX orders no booleans.
    if dtype is torch.bool and op_type != "Equal":
        dtype = torch.int32
    return graph.op(op_type, graph.scalar(x, dtype), graph.scalar(y, dtype))


def _sample(operand: Operand) -> Any:
    """Return a number or tensor of the kind by which torch chooses the dtype that it compares in."""
    if isinstance(operand, Value):
        return torch.empty((1,) * min(operand.rank, 1), dtype=operand.dtype)
    if isinstance(operand, torch.SymInt):
        return 1
    return 1.0 if isinstance(operand, torch.SymFloat) else operand


@lowers(aten.ne.Tensor, aten.ne.Scalar)
def ne(graph: Graph, x: Operand, y: Operand) -> Value:
    return graph.op("Not", compare(graph, x, y, op_type="Equal"))


@lowers(aten.bitwise_not.default)
def bitwise_not(graph: Graph, x: Value) -> Value:
    return graph.op("Not" if x.dtype is torch.bool else "BitwiseNot", x)


@lowers(aten.isnan.default, op_type="IsNaN")
@lowers(aten.isinf.default, op_type="IsInf")
def is_special(graph: Graph, x: Value, *, op_type: str) -> Value:
    # ONNX defines both for floats only; no integer is one.
    return graph.op(op_type, x) if x.is_float else full_like(graph, x, False)


@lowers(aten.where.self)
def where(graph: Graph, condition: Value, x: Operand, y: Operand) -> Value:
    condition = graph.cast(condition, torch.bool)
    x = graph.operand(x)
    y = graph.operand(y)
    if graph.out.dtype is not torch.bool:
        return graph.op("Where", condition, x, y)
    # ONNX Runtime's `Where` has no kernel for booleans.
    return graph.op("Or", graph.op("And", condition, x), graph.op("And", graph.op("Not", condition), y))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(graph: Graph, x: Value, mask: Value, value: Operand) -> Value:
    return where(graph, mask, value, x)


# ---- Activation functions ----


@lowers(aten.gelu.default)
def gelu(graph: Graph, x: Value, *, approximate: str = "none") -> Value:
    if approximate != "none":
        return graph.op("Gelu", x, approximate=approximate)
    readers = (user for source in graph.node.all_input_nodes for user in source.users)
    if any(user.target is aten.gelu_backward.default for user in readers):
        # The derivative has the same nodes, and ONNX Runtime computes equal nodes once.
        return graph.op("Mul", x, _normal_distribution(graph, _divide_by_sqrt_2(graph, x)))
    return graph.op("Gelu", x, domain="" if graph.is_standard else MICROSOFT)


@lowers(aten.gelu_backward.default)
def gelu_backward(graph: Graph, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    derivative = _gelu_derivative if approximate == "none" else _tanh_gelu_derivative
    return graph.op("Mul", grad, derivative(graph, x))


def _gelu_derivative(graph: Graph, x: Value) -> Value:
    """``Phi(x) + x phi(x)`` of the normal distribution, in as few passes over memory as possible."""
    t = _divide_by_sqrt_2(graph, x)
    # x phi(x) = t exp(-t^2) / sqrt(pi), with the constant factor moved into the exponent.
    exponent = graph.op("Sub", graph.operand(-math.log(math.pi) / 2), graph.op("Mul", t, t))
    return graph.op("Add", _normal_distribution(graph, t), graph.op("Mul", t, graph.op("Exp", exponent)))


def _divide_by_sqrt_2(graph: Graph, x: Value) -> Value:
    return graph.op("Mul", x, graph.operand(math.sqrt(0.5)))


def _normal_distribution(graph: Graph, t: Value) -> Value:
    """``Phi(sqrt(2) t)``, which is ``erf(t) / 2 + 1 / 2``: a hard sigmoid computes that in one pass."""
    return graph.op("HardSigmoid", graph.op("Erf", t), alpha=0.5, beta=0.5)


def _tanh_gelu_derivative(graph: Graph, x: Value) -> Value:
    number = graph.operand
    scale = math.sqrt(2 / math.pi)
    cubic = 0.044715
    square = graph.op("Mul", x, x)
    polynomial = graph.op("Add", graph.op("Mul", square, number(cubic)), number(1))
    inner = graph.op("Mul", graph.op("Mul", x, number(scale)), polynomial)
    tanh = graph.op("Tanh", inner)
    slope = graph.op("Mul", graph.op("Add", graph.op("Mul", square, number(3 * cubic)), number(1)), number(scale))
    steepness = graph.op("Sub", number(1), graph.op("Mul", tanh, tanh))
    left = graph.op("Mul", graph.op("Add", tanh, number(1)), number(0.5))
    right = graph.op("Mul", graph.op("Mul", graph.op("Mul", x, number(0.5)), steepness), slope)
    return graph.op("Add", left, right)


@lowers(aten.leaky_relu.default)
def leaky_relu(graph: Graph, x: Value, negative_slope: float = 0.01) -> Value:
    return graph.op("LeakyRelu", x, alpha=float(negative_slope))


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(graph: Graph, grad: Value, x: Value, negative_slope: float, self_is_result: bool) -> Value:
    is_positive = graph.op("Greater", x, graph.operand(0))
    return graph.op("Mul", grad, graph.op("Where", is_positive, graph.operand(1), graph.operand(negative_slope)))
