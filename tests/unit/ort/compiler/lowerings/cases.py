"""How calls of operators are drawn (shapes, dtypes, layouts, numbers at the edges), and how results are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

# ---- Cases ----


@dataclass(frozen=True)
class Call:
    """One call of an operator."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Agreement:
    """How equal the results in ONNX Runtime and in ATen are.

    Args:
        ulps: Largest difference, in the precision of the result's dtype, relative to the number or absolute; ``None``
            for bits that are the same.
        zeros_have_signs: Whether zeros are equal only with the same sign.
        in_float32: Whether float64, too, is only as precise as float32: ONNX keeps numbers of such operators in it.
        values: Whether elements are compared at all.
    """

    ulps: float | None = None
    zeros_have_signs: bool = True
    in_float32: bool = False
    values: bool = True

    def check(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Compare two results; dtype and shape have to be the same always."""
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if not self.values:
            return
        if not expected.is_floating_point():
            assert torch.equal(found, expected), f"{found} is not {expected}"
            return
        precision = torch.float32 if self.in_float32 and expected.dtype is torch.float64 else expected.dtype
        ulp = torch.finfo(precision).eps * (self.ulps or 0)
        torch.testing.assert_close(found, expected, rtol=ulp, atol=ulp, equal_nan=True)
        if self.zeros_have_signs:
            zeros = (found == 0) & (expected == 0)
            signs = found.signbit()[zeros], expected.signbit()[zeros]
            assert torch.equal(*signs), f"{found} has zeros of other signs than {expected}"


@dataclass(frozen=True)
class Case:
    """How one operator is called, and how its results are compared."""

    calls: st.SearchStrategy[Call]
    agreement: Agreement


CASES: dict[Any, Case] = {}


def case(*targets: Any, **agreement: Any) -> Callable[[Callable[..., Call]], Callable[..., Call]]:
    """Register a function that draws calls of operators, given ``draw`` and the operator."""

    def register(function: Callable[..., Call]) -> Callable[..., Call]:
        for target in targets:
            add(target, calls=st.composite(function)(target), **agreement)
        return function

    return register


def add(*targets: Any, calls: st.SearchStrategy[Call], **agreement: Any) -> None:
    """Register the calls of operators."""
    for target in targets:
        assert target not in CASES, f"{target} has a case already"
        CASES[target] = Case(calls, Agreement(**agreement))


@st.composite
def of(draw: Any, tensors: Any, *rest: Any, options: Any = None) -> Call:
    """Draw a call with one tensor or several, then further arguments.

    Args:
        draw: Given by hypothesis.
        tensors: Strategy of the tensor or the tensors.
        rest: Strategy of each further argument, or a function that returns one for the tensors.
        options: Strategy of the dict of named arguments, or a function that returns one for the tensors.
    """
    drawn = draw(tensors)
    given = tuple(drawn) if isinstance(drawn, list | tuple) else (drawn,)

    def chosen(argument: Any) -> Any:
        return draw(argument if isinstance(argument, st.SearchStrategy) else argument(*given))

    return Call((*given, *map(chosen, rest)), {} if options is None else chosen(options))


def maybe(**options: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of these named arguments, or none of them."""
    return st.just({}) | st.fixed_dictionaries(options)


# ---- Values ----

FLOATS = (torch.float32, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
NUMERIC = FLOATS + INTEGERS
ALL = (*NUMERIC, torch.bool)
SIGNED = (*FLOATS, torch.int64, torch.int32)
BITS = (*INTEGERS, torch.bool)
SHAPES = ((), (0,), (1,), (3,), (2, 3), (3, 1), (2, 0, 3), (2, 3, 2), (1, 1, 1), (1, 2, 1, 3))
WITH_DIMENSIONS = tuple(shape for shape in SHAPES if shape)
NOT_EMPTY = tuple(shape for shape in SHAPES if 0 not in shape)
# For operators whose result depends on the order in which numbers are added.
MODERATE = (-2.5, -1.0, -0.75, 0.0, 0.25, 1.0, 1.5, 3.0)
UNUSUAL = (*MODERATE, float("nan"), float("inf"), float("-inf"))
SCALARS = (0, 1, -1, 2, -3, 0.5, -2.5, 1e-3)


def edges(dtype: torch.dtype) -> list[float]:
    """Return numbers at which operators and their kernels go different ways."""
    if dtype is torch.bool:
        return [False, True]
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return [limits.min, limits.max, limits.max // 2 + 1, 0, 1, 2, 3, 7, *([-1, -2, -7] if limits.min else [])]
    limits = torch.finfo(dtype)
    ties = [0.5, -0.5, 1.5, 2.5, -2.5]
    extremes = [limits.max, limits.min, limits.tiny, limits.tiny / 4, limits.eps, -limits.eps / 4]
    return [0.0, -0.0, 1.0, -1.0, 3.0, *ties, *extremes, float("nan"), float("inf"), float("-inf")]


@st.composite
def tensors(draw, dtypes=FLOATS, shapes=SHAPES, numbers: Sequence[float] | None = None) -> torch.Tensor:
    """Draw a tensor; ``shapes`` may be one shape, ``dtypes`` one dtype, and ``numbers`` are by default the edges."""
    dtype = draw(st.sampled_from(dtypes)) if isinstance(dtypes, tuple) else dtypes
    shape = draw(st.sampled_from(shapes)) if shapes and isinstance(shapes[0], tuple) else shapes
    size = torch.Size(shape).numel()
    chosen = st.sampled_from(list(numbers) if numbers is not None else edges(dtype))
    values = torch.tensor(draw(st.lists(chosen, min_size=size, max_size=size)), dtype=dtype).reshape(shape)
    return draw(st.sampled_from(LAYOUTS))(values)


def _between_others(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x], -1)[..., 0]


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.dim() > 1 else x


LAYOUTS = (lambda x: x, _transposed, _between_others)


def shapes_that_broadcast(
    count: int, *, min_side: int = 0, min_dims: int = 0
) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    """Return shapes that broadcast with each other, in every direction."""
    shapes = arrays.mutually_broadcastable_shapes(
        num_shapes=count, min_side=min_side, min_dims=min_dims, max_dims=3, max_side=3
    )
    return shapes.map(lambda result: result.input_shapes)


@st.composite
def broadcasting(draw, *dtypes, numbers: Sequence[float] | None = None) -> list[torch.Tensor]:
    """Draw tensors that broadcast with each other, one for each choice of dtypes."""
    shapes = draw(shapes_that_broadcast(len(dtypes)))
    return [draw(tensors(choice, shape, numbers)) for choice, shape in zip(dtypes, shapes, strict=True)]


# Two tensors of any dtypes, or of the same.
alike_or_not = st.sampled_from([(ALL, ALL), *((dtype, dtype) for dtype in ALL)]).flatmap(
    lambda dtypes: broadcasting(*dtypes)
)


def axes_of(rank: int) -> st.SearchStrategy[int]:
    """Return a dimension, counted from the front or the back; without dimensions torch takes 0 and -1."""
    return st.integers(-max(rank, 1), max(rank, 1) - 1)


def several_axes_of(rank: int) -> st.SearchStrategy[list[int]]:
    """Return some dimensions, each once; possibly none."""
    return st.lists(axes_of(rank), max_size=rank, unique_by=lambda axis: axis % max(rank, 1))


def dim(x: torch.Tensor) -> st.SearchStrategy[int]:
    """Return a dimension of the tensor."""
    return axes_of(x.dim())


def dims(x: torch.Tensor) -> st.SearchStrategy[list[int]]:
    """Return some dimensions of the tensor; possibly none."""
    return several_axes_of(x.dim())


def dims_or_all(x: torch.Tensor) -> st.SearchStrategy[list[int] | None]:
    """Return some dimensions of the tensor, or ``None``."""
    return dims(x) | st.none()
