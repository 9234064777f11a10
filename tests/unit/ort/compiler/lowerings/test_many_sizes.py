"""A graph that was built once runs at other sizes: each lowering that reads sizes or is given them."""

import pytest
import torch

from unit.ort.compiler.lowerings.lowered import assert_is, traced

aten = torch.ops.aten
SIZES = ((3, 4), (5, 2), (2, 7), (6, 6))
CPU = torch.device("cpu")
INT64 = {"dtype": torch.int64, "device": CPU}

SHAPES = {
    "view": lambda x: aten.view(x + 1, [x.shape[1], x.shape[0], 1]),
    "_unsafe_view": lambda x: aten._unsafe_view(x + 1, [x.shape[0] * x.shape[1]]),
    "reshape": lambda x: x.repeat(2, 1).reshape(2, x.shape[0], -1) + 1,
    "expand": lambda x: x.unsqueeze(1).expand(-1, x.shape[1], x.shape[1]) + 1,
    "expand-of-number": lambda x: x.sum().expand(x.shape) + 1,
    "repeat": lambda x: x.repeat(x.shape[1], 2),
    "cat": lambda x: torch.cat([x, x[:1], x[1:]], 0),
    "slice": lambda x: x[x.shape[0] - 2 :, : x.shape[1] - 1] + 1,
    "slice-from-the-end": lambda x: x[-2:, ::2] + 1,
    "select": lambda x: x.select(0, x.shape[0] - 1) + 1,
    "split_with_sizes": lambda x: aten.split_with_sizes(x, [1, x.shape[0] - 1], 0),
    "constant_pad_nd": lambda x: aten.constant_pad_nd(x, [x.shape[0], 1], 0.5),
    "slice_scatter": lambda x: aten.slice_scatter(x, x[1:] + 1, 0, 1, x.shape[0]),
    "select_scatter": lambda x: aten.select_scatter(x, x[:, 0] + 1, 1, -1),
    "flip": lambda x: x.flip([0, 1]),
    "copy": lambda x: aten.copy(x, x[:1]),
    "transpose": lambda x: x.t().contiguous() + x.reshape(x.shape[1], x.shape[0]),
}
CREATION = {
    "full": lambda x: torch.full(x.shape, 3.5) + x,
    "full_like": lambda x: torch.full_like(x, 2),
    "fill": lambda x: aten.fill(x, 2),
    "zeros": lambda x: torch.zeros(x.shape[1], 2) + x[0].unsqueeze(1),
    "ones": lambda x: torch.ones(x.shape[0]) + x[:, 0],
    "empty": lambda x: aten.fill(aten.empty([x.shape[1]], **{**INT64}), 3) + x.shape[0],
    "new_zeros": lambda x: aten.new_zeros(x, [x.shape[1], x.shape[0]]) + x.t(),
    "new_ones": lambda x: aten.new_ones(x, [x.shape[1]]) + x,
    "zeros_like": lambda x: torch.zeros_like(x, dtype=torch.int64),
    "ones_like": lambda x: torch.ones_like(x),
    "scalar_tensor": lambda x: x + aten.scalar_tensor(x.shape[1]),
    "arange": lambda x: torch.arange(x.shape[1]),
    "arange-as-float": lambda x: torch.arange(x.shape[1], dtype=torch.float32) + x,
    "arange-between": lambda x: torch.arange(x.shape[0], x.shape[0] + x.shape[1]),
    "arange-in-steps": lambda x: torch.arange(0, x.shape[1], 2),
    "iota": lambda x: torch.ops.prims.iota(x.shape[0], start=x.shape[1], step=3, requires_grad=False, **INT64),
}
NUMBERS = {
    "add": lambda x: aten.add.Scalar(x, x.shape[0]),
    "sub": lambda x: aten.sub.Scalar(x, x.shape[0]),
    "rsub": lambda x: x.shape[0] - x,
    "fill": lambda x: aten.fill(x, x.shape[0]),
    "mul": lambda x: aten.mul.Scalar(x, x.shape[0] * x.shape[1]),
    "div": lambda x: aten.div.Scalar(x, x.shape[1]),
    "pow": lambda x: aten.pow.Scalar(2, x) * x.shape[0],
    "lt": lambda x: torch.arange(x.shape[0]) < x.shape[1],
    "where": lambda x: torch.where(x > 0, x, x.shape[1]),
    "masked_fill": lambda x: x.masked_fill(x > 0, x.shape[0]),
    "clamp": lambda x: torch.arange(x.shape[0]).clamp(max=x.shape[1] - 1),
    "remainder": lambda x: torch.arange(x.shape[0]) % x.shape[1],
    "floor-division": lambda x: aten.div.Scalar_mode(torch.arange(x.shape[0]), x.shape[1], rounding_mode="floor"),
    "half-of-a-size": lambda x: x[: x.shape[0] // 2] + 1,
}
REDUCTIONS = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "var": lambda x: aten.var.correction(x, [0], correction=1),
    "amax": lambda x: aten.amax(x, [1]),
    "argmax": lambda x: x.argmax(),
    "any": lambda x: (x > 1).any(1),
    "cumsum": lambda x: x.cumsum(0),
    "softmax": lambda x: aten._softmax(x, 0, False),
    "layer_norm": lambda x: aten.native_layer_norm(x, [x.shape[1]], None, None, 1e-5)[0],
    "mm": lambda x: x @ x.t(),
    "addmm": lambda x: torch.addmm(x[:, 0], x, x.t()),
}
INDEXING = {
    "embedding": lambda x: aten.embedding(x, torch.arange(x.shape[0])),
    "embedding_dense_backward": lambda x: aten.embedding_dense_backward(x, x[:, 0].long().abs(), 9, -1, True),
    "index_select": lambda x: x.index_select(0, torch.arange(x.shape[0] - 1)),
    "gather": lambda x: x.gather(0, torch.zeros_like(x[:1], dtype=torch.int64)),
    "scatter": lambda x: aten.scatter.src(x, 0, torch.zeros_like(x[:1], dtype=torch.int64), x + 1),
    "scatter_add": lambda x: x.scatter_add(1, torch.zeros_like(x, dtype=torch.int64), x),
    "index": lambda x: aten.index.Tensor(x, [None, torch.arange(x.shape[1] - 1)]),
    "index-pairs": lambda x: aten.index.Tensor(x, [torch.arange(2), torch.arange(2)]),
    "index_put": lambda x: aten.index_put(x, [torch.arange(x.shape[0] - 1)], x[1:], True),
}
EACH = [
    pytest.param(function, id=f"{kind}-{name}")
    for kind, functions in (
        ("shapes", SHAPES), ("creation", CREATION), ("numbers", NUMBERS), ("reductions", REDUCTIONS),
        ("indexing", INDEXING),
    )
    for name, function in functions.items()
]  # fmt: skip


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("function", EACH)
def test_a_graph_runs_at_other_sizes(function):
    program = traced(function, normal(*SIZES[0]))
    for sizes in SIZES:
        x = normal(*sizes)
        assert_is(program(x), function(x), tolerance=1e-5)


def convolved_and_pooled(x, weight):
    options, kernel = ([2, 1], [1, 1], [1, 1], False, [0, 0], 1), ([3, 2], [2, 2], [1, 1], [1], True)
    y = aten.convolution(x, weight, None, *options)
    return (y, *aten.max_pool2d_with_indices(x, *kernel))


def test_images_of_other_sizes():
    weight = normal(2, 3, 3, 3)
    program = traced(convolved_and_pooled, normal(4, 3, 8, 9), weight)
    for sizes in ((4, 3, 8, 9), (2, 3, 5, 6), (3, 3, 11, 7)):
        x = normal(*sizes)
        assert_is(program(x, weight), convolved_and_pooled(x, weight), tolerance=1e-4)


@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_over_other_lengths(is_causal):
    flash, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )

    def function(x):
        out, logsumexp = flash(x, x, x, 0.0, is_causal)
        return (out, *backward(out, x, x, x, out, logsumexp, 0.0, is_causal))

    program = traced(function, normal(2, 3, 5, 4))
    for sizes in ((2, 3, 5, 4), (4, 3, 7, 4), (3, 2, 2, 4)):
        x = normal(*sizes)
        assert_is(program(x), function(x), tolerance=1e-5)
