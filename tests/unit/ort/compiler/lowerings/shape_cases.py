"""Calls of operators that make tensors, move their elements, or read and write them by index."""

import torch
from hypothesis import strategies as st
from hypothesis.strategies import sampled_from as pick

from unit.ort.compiler.lowerings.cases import (
    ALL,
    FLOATS,
    MODERATE,
    NOT_EMPTY,
    NUMERIC,
    SCALARS,
    SHAPES,
    WITH_DIMENSIONS,
    Call,
    add,
    axes_of,
    case,
    dim,
    dims,
    maybe,
    of,
    shapes_that_broadcast,
    tensors,
)

aten = torch.ops.aten
CPU = torch.device("cpu")
anything = tensors(ALL)
flags = st.booleans()
sizes = pick(SHAPES).map(list)
dtypes = pick(ALL)
numbers = pick([*SCALARS, True, float("-inf"), float("nan")])

# ---- Creation ----


@case(aten.full.default)
def of_a_size_and_a_number(draw, op):
    dtype, number = draw(dtypes), draw(numbers)
    number = number if dtype.is_floating_point else 1
    return Call((draw(sizes), number), draw(pick([{"dtype": dtype, "device": CPU}, {}])))


add(
    aten.full_like.default,
    calls=of(
        anything,
        lambda x: numbers if x.dtype.is_floating_point else st.just(1),
        options=lambda x: maybe(dtype=st.just(x.dtype)),
    ),
)
add(aten.fill.Scalar, calls=of(anything, lambda x: numbers if x.dtype.is_floating_point else st.just(2)))
add(aten.zeros.default, aten.ones.default, calls=st.builds(Call, st.tuples(sizes), maybe(dtype=dtypes)))
typed = st.fixed_dictionaries({"dtype": dtypes})
add(aten.empty.memory_format, calls=st.builds(Call, st.tuples(sizes), typed), values=False)
add(aten.empty_permuted.default, calls=st.builds(Call, st.just(([2, 3], [0, 1])), typed), values=False)
add(aten.empty_strided.default, calls=st.builds(Call, st.just(([2, 3], [3, 1])), typed), values=False)
add(aten.new_zeros.default, aten.new_ones.default, calls=of(anything, sizes, options=maybe(dtype=dtypes)))
add(aten.zeros_like.default, aten.ones_like.default, calls=of(anything, options=maybe(dtype=dtypes)))


@case(aten.scalar_tensor.default)
def of_a_number(draw, op):
    dtype = draw(dtypes)
    return Call((draw(numbers) if dtype.is_floating_point else 1,), {"dtype": dtype})


def _range(draw, *bounds):
    is_whole = all(isinstance(bound, int) for bound in bounds[::2])
    dtypes = NUMERIC if is_whole and min(bounds) >= 0 else FLOATS
    return Call(bounds, draw(pick([{}, *({"dtype": dtype} for dtype in dtypes)])))


@case(aten.arange.default)
def of_an_end(draw, op):
    return _range(draw, draw(pick([0, 1, 5, 2.5])))


@case(aten.arange.start)
def of_two_ends(draw, op):
    start = draw(pick([0, 2, 0.5]))
    return _range(draw, start, start + draw(pick([0, 1, 5, 2.5])))


@case(aten.arange.start_step, ulps=1)
def of_two_ends_and_a_step(draw, op):
    start, step = draw(pick([0, 20, 0.5])), draw(pick([1, 2, 3, 0.1, -1]))
    return _range(draw, start, start + step * draw(pick([0, 1, 2.5, 10])), step)


steps = st.fixed_dictionaries(
    {
        "start": st.integers(-3, 3),
        "step": pick([1, 2, -3]),
        "dtype": pick([torch.int64, torch.int32]),
        "device": st.just(CPU),
        "requires_grad": st.just(False),
    }
)
add(torch.ops.prims.iota.default, calls=st.builds(Call, st.tuples(st.integers(0, 5)), steps))


def _fits(x, dtype):
    """Return whether each number exists in the other dtype too; for others C++ and so each kernel decides."""
    if dtype.is_floating_point or dtype is torch.bool:
        return True
    limits = torch.iinfo(dtype)
    numbers = x.double()
    return bool(((numbers >= limits.min) & (numbers < limits.max)).all()) or not x.dtype.is_floating_point


@case(aten._to_copy.default)
def of_a_cast_or_none(draw, op):
    x, dtype = draw(anything), draw(dtypes)
    return Call((x,), {"dtype": dtype} if _fits(x, dtype) else {})


@case(torch.ops.prims.convert_element_type.default)
def of_a_cast(draw, op):
    x, dtype = draw(anything), draw(dtypes)
    return Call((x, dtype if _fits(x, dtype) else x.dtype))


add(aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default, calls=of(anything))


@case(aten.copy.default)
def of_a_destination_and_a_source(draw, op):
    shape, _ = draw(shapes_that_broadcast(2, min_side=1))
    other = tuple(draw(pick([size, 1])) for size in shape)
    x, source = draw(tensors(ALL, shape)), draw(tensors(ALL, other, numbers=(0, 1, 2)))
    return Call((x, source))


# ---- Shapes ----


@case(aten.view.default, aten._unsafe_view.default)
def of_another_shape(draw, op):
    x = draw(anything).contiguous()
    shapes = [
        shape for shape in (*SHAPES, (6,), (3, 2), (12,), (4, 3), (2, 2, 3)) if torch.Size(shape).numel() == x.numel()
    ]
    shape = list(draw(pick(shapes)))
    if shape and 0 not in shape and draw(flags):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return Call((x, shape))


add(aten.unsqueeze.default, calls=of(anything, lambda x: st.integers(-x.dim() - 1, x.dim())))
add(aten.squeeze.default, calls=of(anything))
add(aten.squeeze.dim, calls=of(anything, dim))
add(aten.squeeze.dims, aten.flip.default, calls=of(anything, dims))
add(aten.transpose.int, calls=of(anything, dim, dim))
add(aten.t.default, calls=of(tensors(ALL, ((), (3,), (0,), (2, 3), (1, 1), (0, 2)))))


@case(aten.permute.default)
def of_an_order(draw, op):
    x = draw(anything)
    order = draw(st.permutations(range(x.dim())))
    return Call((x, [axis - draw(pick([0, x.dim()])) for axis in order]))


@case(aten.expand.default)
def of_a_wider_shape(draw, op):
    x = draw(anything)
    wider = [draw(pick([2, 1, 0])) for _ in range(draw(st.integers(0, 2)))]
    kept = [draw(pick([size, -1])) if size != 1 else draw(pick([1, -1, 3, 0])) for size in x.shape]
    return Call((x, [*wider, *kept]))


@case(aten.cat.default)
def of_parts(draw, op):
    shape = draw(pick(WITH_DIMENSIONS))
    dim = draw(axes_of(len(shape)))
    dtypes = draw(pick([ALL, *ALL]))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        size = list(shape)
        size[dim] = draw(st.integers(0, 3))
        parts.append(draw(tensors(dtypes, tuple(size), numbers=(0, 1, 2))))
    if draw(flags):
        parts.insert(draw(st.integers(0, len(parts))), torch.zeros(0))
    return Call((parts, dim))


bounds = st.none() | st.integers(-5, 5) | st.just(2**63 - 1)


@case(aten.slice.Tensor)
def of_a_part(draw, op):
    x = draw(tensors(ALL, WITH_DIMENSIONS))
    return Call((x, draw(axes_of(x.dim())), draw(bounds), draw(bounds), draw(st.integers(1, 3))))


@case(aten.select.int)
def of_one_index(draw, op):
    x = draw(tensors(ALL, NOT_EMPTY[1:]))
    dim = draw(axes_of(x.dim()))
    return Call((x, dim, draw(st.integers(-x.shape[dim], x.shape[dim] - 1))))


@case(aten.split_with_sizes.default)
def of_sizes_of_parts(draw, op):
    x = draw(tensors(ALL, WITH_DIMENSIONS))
    dim = draw(axes_of(x.dim()))
    cuts = sorted(draw(st.lists(st.integers(0, x.shape[dim]), max_size=2)))
    ends = [*cuts, x.shape[dim]]
    return Call((x, [end - start for start, end in zip([0, *cuts], ends, strict=True)], dim))


@case(aten.constant_pad_nd.default)
def of_a_margin(draw, op):
    x = draw(tensors(ALL, WITH_DIMENSIONS))
    margins = []
    for size in x.shape[::-1][: draw(st.integers(1, x.dim()))]:
        before = draw(st.integers(-size, 2))
        margins += [before, draw(st.integers(-size - min(before, 0), 2))]
    return Call((x, margins, draw(pick([0, 1, -2.5] if x.dtype.is_floating_point else [0, 1]))))


@case(aten.repeat.default)
def of_repeats(draw, op):
    x = draw(tensors(ALL))
    more = draw(st.integers(0, 2))
    return Call((x, [draw(st.integers(0, 2)) for _ in range(x.dim() + more)]))


@case(aten.slice_scatter.default)
def of_a_part_to_replace(draw, op):
    x = draw(tensors(ALL, WITH_DIMENSIONS))
    part = (draw(axes_of(x.dim())), draw(bounds), draw(bounds), draw(st.integers(1, 3)))
    shape = tuple(aten.slice.Tensor(x, *part).shape)
    return Call((x, draw(tensors(x.dtype, shape)), *part))


@case(aten.select_scatter.default)
def of_one_index_to_replace(draw, op):
    x = draw(tensors(FLOATS, NOT_EMPTY[1:]))
    dim = draw(axes_of(x.dim()))
    index = draw(st.integers(-x.shape[dim], x.shape[dim] - 1))
    return Call((x, draw(tensors(x.dtype, tuple(x.select(dim, index).shape))), dim, index))


# ---- Indexing ----

INDICES = (torch.int64, torch.int32)
INDEX_SHAPES = ((), (0,), (1,), (3,), (2, 3), (2, 1))


def _indices(size, *, shapes=INDEX_SHAPES, dtypes=INDICES, lowest=0):
    return tensors(dtypes, shapes, numbers=range(lowest, size))


@case(aten.embedding.default)
def of_a_table(draw, op):
    weight = draw(tensors(FLOATS, ((1, 2), (4, 3), (4, 0))))
    return Call((weight, draw(_indices(len(weight))), draw(pick([-1, 0]))))


@case(aten.embedding_dense_backward.default, ulps=4, zeros_have_signs=False)
def of_gradients_of_a_table(draw, op):
    indices = draw(_indices(5))
    grad = draw(tensors((torch.float32, torch.float64), (*indices.shape, 2), numbers=MODERATE))
    return Call((grad, indices, 5, draw(pick([-1, 0, 2])), draw(flags)))


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
        index = size - 1 - index if draw(flags) else index
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
    return Call((x, dim, _elementwise_index(draw, x, dim), draw(pick([0, 1]))))


@case(aten.scatter_add.default, ulps=4, zeros_have_signs=False)
def of_elements_to_add(draw, op):
    dtype = draw(pick([*FLOATS, torch.int64, torch.int32]))
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
    given = draw(st.lists(flags, min_size=1, max_size=x.dim()).filter(any))
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
    dtype = draw(pick([*FLOATS, torch.int64, torch.bool]))
    numbers = MODERATE if dtype.is_floating_point else (0, 1)
    x = draw(tensors(dtype, NOT_EMPTY[1:], numbers))
    # ONNX Runtime refuses to write nothing at all to several dimensions.
    indices = _coordinates(draw, x, min_side=1)
    shape = x[tuple(slice(None) if index is None else index.long() for index in indices)].shape
    accumulate = draw(flags)
    # Of several elements written to one place any may win: they are equal.
    values = draw(tensors(dtype, tuple(shape), numbers) if accumulate else tensors(dtype, ((), (1,)), numbers))
    if accumulate and shape and draw(flags):
        values = values[:1]
    return Call((x, indices, values, accumulate))
