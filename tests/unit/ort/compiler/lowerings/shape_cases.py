"""Calls of operators that move elements and leave them as they are."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import ALL, FLOATS, SHAPES, axes_of, several_axes_of, tensors

aten = torch.ops.aten
WITH_DIMENSIONS = tuple(shape for shape in SHAPES if shape)
NOT_EMPTY = tuple(shape for shape in WITH_DIMENSIONS if 0 not in shape)


@case(aten.view.default, aten._unsafe_view.default)
def of_another_shape(draw, op):
    x = draw(tensors(ALL)).contiguous()
    shapes = [
        shape for shape in (*SHAPES, (6,), (3, 2), (12,), (4, 3), (2, 2, 3)) if torch.Size(shape).numel() == x.numel()
    ]
    shape = list(draw(st.sampled_from(shapes)))
    if shape and 0 not in shape and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return Call((x, shape))


@case(aten.unsqueeze.default)
def of_a_new_dimension(draw, op):
    x = draw(tensors(ALL))
    return Call((x, draw(st.integers(-x.dim() - 1, x.dim()))))


@case(aten.squeeze.default)
def of_all_dimensions_of_one(draw, op):
    return Call((draw(tensors(ALL)),))


@case(aten.squeeze.dim)
def of_a_dimension_of_one(draw, op):
    x = draw(tensors(ALL))
    return Call((x, draw(axes_of(x.dim()))))


@case(aten.squeeze.dims)
def of_dimensions_of_one(draw, op):
    x = draw(tensors(ALL))
    return Call((x, draw(several_axes_of(x.dim()))))


@case(aten.permute.default)
def of_an_order(draw, op):
    x = draw(tensors(ALL))
    order = draw(st.permutations(range(x.dim())))
    return Call((x, [axis - draw(st.sampled_from([0, x.dim()])) for axis in order]))


@case(aten.transpose.int)
def of_two_dimensions(draw, op):
    x = draw(tensors(ALL))
    return Call((x, draw(axes_of(x.dim())), draw(axes_of(x.dim()))))


@case(aten.t.default)
def of_a_matrix(draw, op):
    return Call((draw(tensors(ALL, ((), (3,), (0,), (2, 3), (1, 1), (0, 2)))),))


@case(aten.expand.default)
def of_a_wider_shape(draw, op):
    x = draw(tensors(ALL))
    wider = [draw(st.sampled_from([2, 1, 0])) for _ in range(draw(st.integers(0, 2)))]
    kept = [
        draw(st.sampled_from([size, -1])) if size != 1 else draw(st.sampled_from([1, -1, 3, 0])) for size in x.shape
    ]
    return Call((x, [*wider, *kept]))


@case(aten.cat.default)
def of_parts(draw, op):
    shape = draw(st.sampled_from(WITH_DIMENSIONS))
    dim = draw(axes_of(len(shape)))
    dtypes = draw(st.sampled_from([ALL, *ALL]))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        size = list(shape)
        size[dim] = draw(st.integers(0, 3))
        parts.append(draw(tensors(dtypes, tuple(size), numbers=(0, 1, 2))))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), torch.zeros(0))
    return Call((parts, dim))


bounds = st.none() | st.integers(-5, 5) | st.just(2**63 - 1)


@case(aten.slice.Tensor)
def of_a_part(draw, op):
    x = draw(tensors(ALL, WITH_DIMENSIONS))
    return Call((x, draw(axes_of(x.dim())), draw(bounds), draw(bounds), draw(st.integers(1, 3))))


@case(aten.select.int)
def of_one_index(draw, op):
    x = draw(tensors(ALL, NOT_EMPTY))
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
    return Call((x, margins, draw(st.sampled_from([0, 1, -2.5] if x.dtype.is_floating_point else [0, 1]))))


@case(aten.repeat.default)
def of_repeats(draw, op):
    x = draw(tensors(ALL))
    more = draw(st.integers(0, 2))
    return Call((x, [draw(st.integers(0, 2)) for _ in range(x.dim() + more)]))


@case(aten.flip.default)
def of_dimensions_to_turn(draw, op):
    x = draw(tensors(ALL))
    return Call((x, draw(several_axes_of(x.dim()))))


@case(aten.slice_scatter.default)
def of_a_part_to_replace(draw, op):
    x = draw(tensors(ALL, WITH_DIMENSIONS))
    part = (draw(axes_of(x.dim())), draw(bounds), draw(bounds), draw(st.integers(1, 3)))
    shape = tuple(aten.slice.Tensor(x, *part).shape)
    return Call((x, draw(tensors(x.dtype, shape)), *part))


@case(aten.select_scatter.default)
def of_one_index_to_replace(draw, op):
    x = draw(tensors(FLOATS, NOT_EMPTY))
    dim = draw(axes_of(x.dim()))
    index = draw(st.integers(-x.shape[dim], x.shape[dim] - 1))
    return Call((x, draw(tensors(x.dtype, tuple(x.select(dim, index).shape))), dim, index))
