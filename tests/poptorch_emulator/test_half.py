"""Half precision is that of a device: single-precision sums, one rounding, no infinity."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, infer, options
from poptorch_emulator.half import LARGEST, HalfArithmetic, round_to_half

sizes = st.integers(1, 40)


def integers(rows, columns, most, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (rows, columns), generator=generator)


@given(rows=sizes, inner=st.integers(1, 64), columns=sizes, seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_products_are_exact_sums_rounded_once(rows, inner, columns, seed):
    # Sums of at most 64 products of 7-bit numbers are exact in single precision.
    first, second = integers(rows, inner, 64, seed), integers(inner, columns, 64, seed + 1)
    exact = np.clip((first @ second).numpy(), -LARGEST, LARGEST).astype(np.float16)
    with HalfArithmetic():
        found = first.half() @ second.half()
    assert found.dtype is torch.float16
    assert np.array_equal(found.numpy(), exact)


@given(rows=sizes, inner=st.integers(1, 100), columns=sizes, seed=st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_exact_products_equal_those_of_torch(rows, inner, columns, seed):
    # No partial sum exceeds 1600, and half precision has all integers up to 2048.
    first, second = integers(rows, inner, 4, seed).half(), integers(inner, columns, 4, seed + 1).half()
    with HalfArithmetic():
        found = first @ second
    assert torch.equal(found, first @ second)


def attention(x):
    return functional.scaled_dot_product_attention(x, x, x, attn_mask=torch.zeros(4, 4, dtype=x.dtype))


def table(x):
    return functional.embedding(torch.tensor([0, 1, 1, 1]), x[0])


OPERATIONS = {
    "linear": lambda x: functional.linear(x, x[0], x[0, 0]),
    "batched": lambda x: torch.baddbmm(x, x, x.transpose(1, 2)),
    "vector": lambda x: x[0] @ x[0, 0] + x[0, 0] @ x[0, 1],
    "attention": attention,
    "table": table,
    "layer_norm": lambda x: functional.layer_norm(x, (4,), x[0, 0], x[0, 1]),
    "convolution": lambda x: functional.conv1d(x, x[:, :, :3]),
    "sum": lambda x: x.sum(-1) + x.sum(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_and_gradients_are_rounded_from_single_precision(name):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 4, 4, generator=generator).half()
    found = {}
    for dtype in (torch.float16, torch.float32):
        x = values.clone().to(dtype).requires_grad_()
        with HalfArithmetic():
            out = OPERATIONS[name](x)
            out.backward(torch.ones_like(out))
        found[dtype] = (out.detach(), x.grad)
    for half, single in zip(*found.values(), strict=True):
        assert half.dtype is torch.float16
        assert torch.allclose(half.float(), single, rtol=4e-3, atol=4e-3)


def test_gradient_of_an_embedding_sums_in_single_precision():
    # In half precision 2048 + 1 is 2048.
    weight = torch.zeros(1, 1, dtype=torch.float16, requires_grad=True)
    with HalfArithmetic():
        functional.embedding(torch.zeros(3000, dtype=torch.int64), weight).sum().backward()
    assert weight.grad.item() == 3000


def test_overflow_gives_the_largest_number():
    large = torch.full((2, 2), 60000.0, dtype=torch.float16)
    with HalfArithmetic():
        assert (large @ large).tolist() == [[LARGEST] * 2] * 2
        assert (large @ -large).sum().item() == -LARGEST
        assert (large @ (large * float("nan"))).isnan().all()
    assert round_to_half(torch.tensor([1e9, -1e9, float("inf"), 0.1])).tolist() == [
        LARGEST,
        -LARGEST,
        LARGEST,
        0.0999755859375,
    ]


class TestPrograms:
    def gradients(self, monkeypatch, model):
        used = []
        watched = HalfArithmetic.__torch_dispatch__
        monkeypatch.setattr(
            HalfArithmetic,
            "__torch_dispatch__",
            lambda self, func, types, args=(), kwargs=None: (
                used.append(func) or watched(self, func, types, args, kwargs)
            ),
        )
        x, labels = batches(1, 4, torch.float16)[0]
        dtype = next(model.parameters()).dtype
        poptorch.trainingModel(model, options(accumulation=2))(x.to(dtype), labels.to(dtype))
        return used

    def test_programs_in_half_precision_use_it_forward_and_backward(self, monkeypatch):
        used = self.gradients(monkeypatch, Perceptron().half())
        aten = torch.ops.aten
        # Two layers, compiled once and run twice.
        assert used.count(aten.addmm.default) == 6
        assert used.count(aten.mm.default) == 2 * 3

    def test_programs_in_single_precision_do_not_use_it(self, monkeypatch):
        assert not self.gradients(monkeypatch, Perceptron())

    @pytest.mark.parametrize("takes_mean", [True, False])
    def test_accumulation_saturates_at_the_largest_number(self, takes_mean):
        model = nn.Linear(1, 1, bias=False).half()
        program = type("Program", (nn.Module,), {"forward": lambda self, x: poptorch.identity_loss(model(x).sum())})()
        program.model = model
        reduction = poptorch.ReductionType.Mean if takes_mean else poptorch.ReductionType.Sum
        optimizer = poptorch.optim.SGD(program.parameters(), lr=2.0**-10, accum_type=torch.float16)
        before = model.weight.item()
        executor = poptorch.trainingModel(program, options(accumulation=2, reduction=reduction), optimizer)
        executor(torch.tensor([[65504.0], [65504.0]], dtype=torch.float16))
        # Of the sum, which is twice as large, the largest number is left.
        assert model.weight.item() == pytest.approx(before - 65504 / 2**10, abs=0.1)

    def test_training_stays_close_to_single_precision(self):
        found = []
        for dtype in (torch.float32, torch.float16):
            model = Perceptron().to(dtype)
            optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=dtype)
            executor = poptorch.trainingModel(model, options(2, 2, 2), optimizer)
            for x, labels in batches(4, 16, dtype):
                executor(x, labels)
            found.append(torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()]))
        assert torch.allclose(*found, atol=2e-3)


class TestMixedOperands:
    """Half and single precision make half precision, as with the only `HalfFloatCastingBehavior` of PopTorch."""

    @pytest.mark.parametrize(
        "function",
        [
            lambda half, single: half + single,
            lambda half, single: single * half,
            lambda half, single: torch.cat([single, half]),
            lambda half, single: torch.where(half > 0, half, single),
            lambda half, single: single @ half,
            lambda half, single: functional.layer_norm(half, (2,), weight=single[0]),
            lambda half, single: single + single.half(),
        ],
    )
    def test_results_are_in_half_precision(self, function):
        single = torch.eye(2)
        assert infer(function, single.half(), single).dtype is torch.float16

    def test_conversions_and_changes_in_place_keep_their_formats(self):
        def convert(half, single):
            return half.type_as(single), half.to(single), single.clone().add_(half), half.float() + single

        assert {tensor.dtype for tensor in infer(convert, torch.ones(2).half(), torch.ones(2))} == {torch.float32}

    def test_weights_may_stay_in_single_precision(self):
        found = []
        for dtype in (torch.float32, torch.float16):
            torch.manual_seed(0)
            layers = nn.Sequential(nn.Conv1d(1, 4, 2), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 2))
            model = type(
                "Model", (nn.Module,), {"forward": lambda self, x: poptorch.identity_loss(self.net(x), "sum")}
            )()
            model.net = layers
            chosen = options(1, 1, 2)
            executor = poptorch.trainingModel(model, chosen, poptorch.optim.SGD(model.parameters(), lr=0.01))
            for x, _ in batches(3, 4, dtype):
                loss = executor(x[:, None])
            assert loss.dtype is dtype
            assert all(tensor.dtype is torch.float32 for tensor in layers.parameters())
            assert layers[1].running_var.dtype is torch.float32
            found.append(torch.cat([tensor.detach().flatten() for tensor in layers.state_dict().values()]))
        assert torch.allclose(*found, atol=2e-3)
        assert not torch.equal(*found)
