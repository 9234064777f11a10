"""Calls of operators that read and write by index."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import ALL, FLOATS, MODERATE, SHAPES, axes_of, shapes_that_broadcast, tensors

aten = torch.ops.aten
INDICES = (torch.int64, torch.int32)
NOT_EMPTY = tuple(shape for shape in SHAPES if 0 not in shape)
INDEX_SHAPES = ((), (0,), (1,), (3,), (2, 3), (2, 1))


def _indices(size, *, shapes=INDEX_SHAPES, dtypes=INDICES, lowest=0):
    return tensors(dtypes, shapes, numbers=range(lowest, size))


@case(aten.embedding.default)
def of_a_table(draw, op):
    weight = draw(tensors(FLOATS, ((1, 2), (4, 3), (4, 0))))
    return Call((weight, draw(_indices(len(weight))), draw(st.sampled_from([-1, 0]))))


@case(aten.embedding_dense_backward.default, ulps=4, zeros_have_signs=False)
def of_gradients_of_a_table(draw, op):
    indices = draw(_indices(5))
    grad = draw(tensors((torch.float32, torch.float64), (*indices.shape, 2), numbers=MODERATE))
    return Call((grad, indices, 5, draw(st.sampled_from([-1, 0, 2])), draw(st.booleans())))


def _smaller(draw, shape):
    return tuple(draw(st.integers(0, size)) for size in shape)


def _elementwise_index(draw, x, dim, *, unique=False):
    size = x.shape[dim] if x.dim() else 1
    shape = _smaller(draw, x.shape)
    index = draw(_indices(size, shapes=shape, dtypes=torch.int64))
    if unique and x.dim():
        # Of several elements written to one place any may win: each has a place of its own.
        places = torch.arange(shape[dim]).reshape([-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())])
        index = places.expand(shape).clone()
        index = size - 1 - index if draw(st.booleans()) else index
    return index


@case(aten.gather.default)
def of_elements(draw, op):
    x = draw(tensors(ALL, NOT_EMPTY))
    dim = draw(axes_of(x.dim()))
    return Call((x, dim, _elementwise_index(draw, x, dim)))


@case(aten.scatter.src)
def of_elements_to_write(draw, op):
    x = draw(tensors(ALL, NOT_EMPTY))
    dim = draw(axes_of(x.dim()))
    index = _elementwise_index(draw, x, dim, unique=True)
    return Call((x, dim, index, draw(tensors(x.dtype, tuple(size + 1 for size in index.shape)))))


@case(aten.scatter.value)
def of_a_number_to_write(draw, op):
    x = draw(tensors(ALL, NOT_EMPTY))
    dim = draw(axes_of(x.dim()))
    return Call((x, dim, _elementwise_index(draw, x, dim), draw(st.sampled_from([0, 1]))))


@case(aten.scatter_add.default, ulps=4, zeros_have_signs=False)
def of_elements_to_add(draw, op):
    dtype = draw(st.sampled_from([*FLOATS, torch.int64, torch.int32]))
    numbers = MODERATE if dtype.is_floating_point else (0, 1, 2, -3)
    x = draw(tensors(dtype, NOT_EMPTY, numbers))
    dim = draw(axes_of(x.dim()))
    index = _elementwise_index(draw, x, dim)
    return Call((x, dim, index, draw(tensors(dtype, tuple(size + 1 for size in index.shape), numbers))))


@case(aten.index_select.default)
def of_rows(draw, op):
    x = draw(tensors(ALL, NOT_EMPTY))
    dim = draw(axes_of(x.dim()))
    size = x.shape[dim] if x.dim() else 1
    return Call((x, dim, draw(_indices(size, shapes=((), (1,), (3,), (0,)) if x.dim() else ((), (1,))))))


def _coordinates(draw, x, *, min_side=0):
    """Draw an index, or none, for each of the first dimensions; torch says wrong shapes if only some are numbers."""
    given = draw(st.lists(st.booleans(), min_size=1, max_size=x.dim()).filter(any))
    shapes = iter(draw(shapes_that_broadcast(sum(given), min_dims=1, min_side=min_side)))
    indices = []
    for size, is_given in zip(x.shape, given, strict=False):
        indices.append(draw(_indices(size, shapes=next(shapes), lowest=-size)) if is_given else None)
    return indices


@case(aten.index.Tensor)
def of_coordinates(draw, op):
    x = draw(tensors(ALL, NOT_EMPTY[1:]))
    return Call((x, _coordinates(draw, x)))


@case(aten.index_put.default, aten._unsafe_index_put.default, ulps=4, zeros_have_signs=False)
def of_coordinates_to_write(draw, op):
    dtype = draw(st.sampled_from([*FLOATS, torch.int64, torch.bool]))
    numbers = MODERATE if dtype.is_floating_point else (0, 1)
    x = draw(tensors(dtype, NOT_EMPTY[1:], numbers))
    # ONNX Runtime refuses to write nothing at all to several dimensions.
    indices = _coordinates(draw, x, min_side=1)
    shape = x[tuple(slice(None) if index is None else index.long() for index in indices)].shape
    accumulate = draw(st.booleans())
    # Of several elements written to one place any may win: they are equal.
    values = draw(tensors(dtype, tuple(shape), numbers) if accumulate else tensors(dtype, ((), (1,)), numbers))
    if accumulate and shape and draw(st.booleans()):
        values = values[:1]
    return Call((x, indices, values, accumulate))
