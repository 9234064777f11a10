"""Tensors as hypothesis draws them: shapes, dtypes, layouts, and numbers at the edges of each dtype."""

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

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
