import pytest
import torch

from unit.ort.lowered import assert_agrees

aten = torch.ops.aten


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X = normal(2, 3, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(),
        lambda x: x.sum(1),
        lambda x: x.sum((0, -1), keepdim=True),
        lambda x: (x > 0).sum(-1),
        lambda x: x.mean(),
        lambda x: x.mean(-1, keepdim=True),
        lambda x: aten.amax(x, [1]),
        lambda x: aten.amin(x, [0, 2], True),
        lambda x: (x > 1).any(),
        lambda x: (x > 1).any(-1, True),
        lambda x: (x > -9).all(0),
        lambda x: x.argmax(),
        lambda x: x.argmin(-1, True),
        lambda x: aten.max.dim(x, 1),
        lambda x: aten.min.dim(x, -1, True),
        lambda x: aten.var.correction(x, [-1], correction=0),
        lambda x: aten.var.correction(x, [0, 2], correction=1, keepdim=True),
        lambda x: x.cumsum(1),
        lambda x: (x > 0).cumsum(-1),
        lambda x: x.prod(),
        lambda x: aten.prod.dim_int(x, 1),
    ],
)
def test_reductions(function):
    assert_agrees(function, X, tolerance=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(-1, 4) + 1,
        lambda x: x.view(x.shape[0], 12) + 1,
        lambda x: x.view(x.shape[0], 1, x.shape[1], -1) + 1,
        lambda x: x.permute(2, 0, 1) + 1,
        lambda x: x.transpose(0, -1) + 1,
        lambda x: x[0].t() + 1,
        lambda x: x.unsqueeze(1) + 1,
        lambda x: x[:, :1].squeeze(1) + 1,
        lambda x: x[:1, :, :1].squeeze() + 1,
        lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1) + 1,
        lambda x: torch.cat([x, x + 1, torch.zeros(0)], 0),
        lambda x: torch.cat([x, x], -1),
        lambda x: x[:, 1:] + 1,
        lambda x: x[:, -2:, ::2] + 1,
        lambda x: x[1] + 1,
        lambda x: x[:, -1] + 1,
        lambda x: x.split_with_sizes([1, 3], -1),
        lambda x: aten.constant_pad_nd(x, [1, 2, 0, 1], 0.5),
        lambda x: aten.constant_pad_nd(x, [-1, 0], 0),
        lambda x: x.repeat(2, 1, 3),
        lambda x: x.repeat(2, 1, 1, 3),
        lambda x: x.flip([0, 2]),
        lambda x: aten.slice_scatter(x, x[:, :2] + 1, 1, 1, 3),
        lambda x: aten.slice_scatter(x, x[..., ::2] * 0, 2, 0, 4, 2),
        lambda x: aten.select_scatter(x, x[:, 0] + 1, 1, 2),
        lambda x: aten.select_scatter(x, x[0] + 1, 0, -1),
        lambda x: aten.copy(x, x[:1]),
    ],
)
def test_shapes(function):
    assert_agrees(function, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.full(x.shape, 3.5) + x,
        lambda x: torch.full_like(x, 2),
        lambda x: torch.zeros_like(x, dtype=torch.int64),
        lambda x: x.new_ones(x.shape[0], 2),
        lambda x: torch.arange(x.shape[1]),
        lambda x: torch.arange(1, 9, 2, dtype=torch.float32) + x[0, 0, 0],
        lambda x: (
            torch.ops.prims.iota(
                5, start=2, step=3, dtype=torch.int64, device=torch.device("cpu"), requires_grad=False
            )
            + x[0, 0, 0].long()
        ),
        lambda x: x + torch.ops.aten.scalar_tensor(2.5),
    ],
)
def test_creation(function):
    assert_agrees(function, X)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (aten.mm, [(3, 4), (4, 2)]),
        (aten.bmm, [(2, 3, 4), (2, 4, 5)]),
        (aten.addmm, [(2,), (3, 4), (4, 2)]),
        (lambda b, x, y: aten.addmm(b, x, y, beta=0.5, alpha=2), [(3, 2), (3, 4), (4, 2)]),
        (lambda b, x, y: aten.baddbmm(b, x, y, beta=0.5, alpha=2), [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
        (lambda x, y: aten.mm(x.t(), y), [(4, 3), (4, 2)]),
    ],
)
def test_matrices(function, shapes):
    assert_agrees(function, *(normal(*shape, seed=seed) for seed, shape in enumerate(shapes)), tolerance=1e-5)


INDICES = torch.tensor([[0, 4, 1], [2, 2, 0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda w, i: aten.embedding(w, i, 0),
        lambda w, i: aten.index_select(w, 0, i[0]),
        lambda w, i: aten.gather(w, 1, i[:, :2] % 3),
        lambda w, i: aten.scatter.value(w, 0, i, 9.0),
        lambda w, i: aten.scatter.src(w, 1, i[:1] % 3, w[:1] + 10),
        lambda w, i: aten.scatter_add(w, 0, i, torch.ones_like(i, dtype=torch.float32)),
        lambda w, i: aten.index.Tensor(w, [i]),
        lambda w, i: aten.index.Tensor(w, [None, i % 3]),
        lambda w, i: aten.index.Tensor(w, [i, i % 3]),
        lambda w, i: aten.index.Tensor(w, [i - 5]),
        lambda w, i: aten.index.Tensor(w, [i[:, :1], i[0] % 3]),
        lambda w, i: aten.index_put(w, [i[0]], w[:3] * 2),
        lambda w, i: aten.index_put(w, [i], torch.ones(3), True),
        lambda w, i: aten.index_put(w, [None, i % 3], w[0, 0], True),
        lambda w, i: aten.index_put(w, [i - 5, i % 3], torch.ones(2, 1), True),
    ],
)
def test_indexing(function):
    assert_agrees(function, normal(5, 3), INDICES)


@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_embedding_backward_adds_up_and_skips_padding(padding_idx):
    assert_agrees(lambda g, i: aten.embedding_dense_backward(g, i, 5, padding_idx, False), normal(2, 3, 4), INDICES)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [(aten._softmax, aten._softmax_backward_data), (aten._log_softmax, aten._log_softmax_backward_data)],
)
def test_softmax_and_its_derivative(forward, backward, dim):
    assert_agrees(lambda x: forward(x, dim, False), X, tolerance=1e-6)
    y = forward(X, dim, False)
    assert_agrees(lambda g, y: backward(g, y, dim, torch.float32), normal(2, 3, 4, seed=1), y, tolerance=1e-6)


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_and_its_derivative(affine):
    w, b = (normal(4, seed=1), normal(4, seed=2)) if affine else (None, None)
    options = [w, b] if affine else []
    forward = (
        (lambda x, w, b: aten.native_layer_norm(x, [4], w, b, 1e-5))
        if affine
        else (lambda x: aten.native_layer_norm(x, [4], None, None, 1e-5))
    )
    assert_agrees(forward, X, *options, tolerance=1e-5)
    _, mean, rstd = forward(X, *options)
    grad = normal(2, 3, 4, seed=3)
    if affine:
        assert_agrees(
            lambda g, x, m, r, w, b: aten.native_layer_norm_backward(g, x, [4], m, r, w, b, [True] * 3),
            grad, X, mean, rstd, w, b, tolerance=1e-5,
        )  # fmt: skip
    else:
        assert_agrees(
            lambda g, x, m, r: aten.native_layer_norm_backward(g, x, [4], m, r, None, None, [True, False, False])[0],
            grad, X, mean, rstd, tolerance=1e-5,
        )  # fmt: skip


def test_the_derivative_of_dropout():
    assert_agrees(lambda g, x: aten.native_dropout_backward(g, x > 0, 1.25), normal(2, 3), normal(2, 3, seed=1))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_its_derivative(training):
    x, w, b, m, v = normal(3, 2, 5), normal(2), normal(2, seed=1), normal(2, seed=2), normal(2, seed=3).abs()
    assert_agrees(
        lambda x, w, b, m, v: aten._native_batch_norm_legit_functional(x, w, b, m, v, training, 0.1, 1e-5)[0],
        x, w, b, m, v, tolerance=1e-5,
    )  # fmt: skip
    if training:
        assert_agrees(
            lambda x, w, b, m, v: aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-5),
            x, w, b, m, v, tolerance=1e-5,
        )  # fmt: skip
    _, mean, rstd = aten.native_batch_norm(x, w, b, m.clone(), v.clone(), training, 0.1, 1e-5)
    saved = [mean, rstd] if training else []
    assert_agrees(
        lambda g, x, w, m, v, *saved: aten.native_batch_norm_backward(
            g, x, w, m, v, *(saved or (None, None)), training, 1e-5, [True] * 3
        ),
        normal(3, 2, 5, seed=4), x, w, m, v, *saved, tolerance=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize(("causal", "masked"), [(True, False), (False, True), (False, False)])
def test_flash_attention_and_its_derivative(causal, masked):
    q, k, v, grad = (normal(2, 2, 5, 8, seed=seed) for seed in range(4))
    extra = [normal(2, 1, 5, 5, seed=9)] if masked else []
    flash = aten._scaled_dot_product_flash_attention_for_cpu

    def mask(rest):
        return rest[0] if rest else None

    assert_agrees(lambda q, k, v, *m: flash(q, k, v, 0.0, causal, attn_mask=mask(m)), q, k, v, *extra, tolerance=1e-5)
    out, lse = flash(q, k, v, 0.0, causal, attn_mask=mask(extra))
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    assert_agrees(
        lambda g, q, k, v, out, lse, *m: backward(g, q, k, v, out, lse, 0.0, causal, attn_mask=mask(m)),
        grad, q, k, v, out, lse, *extra, tolerance=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [True, False])
def test_convolution(groups, transposed):
    x, b = normal(2, 4, 7), normal(4)
    w = normal(4, 4 // groups, 3)
    assert_agrees(
        lambda x, w, b: aten.convolution(x, w, b, [2], [1], [1], transposed, [0], groups), x, w, b, tolerance=1e-5
    )
