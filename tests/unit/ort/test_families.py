"""Losses and gradients of whole models, in training and in evaluation, against eager mode."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

import portico.ort
from portico.compat import releases
from portico.errors import MissingPackageError
from portico.ort.api import get_compiled_call, running_in_torch
from portico.ort.compiler import backend
from portico.ort.compiler.decompositions import FASTER_IN_TORCH
from portico.ort.compiler.translation import translate
from portico.ort.settings import SessionSettings
from releases import since_transformers
from unit.ort.families import FAMILIES, MORE_FAMILIES, make_batch, make_model


def loss_and_gradients(model: nn.Module, batch: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of one step and every gradient; dropout is drawn from the same seed each time."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(**batch)["loss"]
    loss.backward()
    return loss.item(), {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def assert_gradients_are_eager(model: nn.Module, batches: Iterable[dict[str, Any]], tolerance: float) -> None:
    """Compare losses and gradients of a compiled model; the tolerance is relative to the largest gradient."""
    for batch in batches:
        with running_in_torch(model):
            loss, gradients = loss_and_gradients(model, batch)
        found_loss, found = loss_and_gradients(model, batch)
        assert found_loss == pytest.approx(loss, abs=tolerance)
        assert found.keys() == gradients.keys()
        largest = max(gradient.abs().max() for gradient in gradients.values())
        for parameter, gradient in gradients.items():
            assert (found[parameter] - gradient).abs().max() <= tolerance * largest, parameter


QUICK = {("bert-qa", "sdpa"), ("convolutional", "sdpa"), ("perceptron", "sdpa")}

HAVE_NO_ATTENTION = ("convolutional", "perceptron")

SHAPES = ((3, 7), (2, 9), (4, 12))

# Relative to the largest gradient: float32 sums in another order.
TOLERANCE = 2e-6

AFTER_TWENTY_STEPS = 1e-5

CASES = [
    pytest.param(
        name, attention, marks=() if (name, attention) in QUICK else pytest.mark.slow, id=f"{name}-{attention}"
    )
    for name in FAMILIES
    for attention in ("sdpa", "eager")
    if name not in HAVE_NO_ATTENTION or attention == "sdpa"
]


def train(model, name, learning_rate=0.01):
    """Take 20 steps of two batches each, of many shapes; return the losses.

    The steps are small: large ones make some families unstable, which then enlarge every rounding.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    torch.manual_seed(2)
    losses = []
    for step in range(20):
        optimizer.zero_grad()
        for part in range(2):
            loss = model(**make_batch(name, 2 + (step + part) % 3, 7 + step % 4))["loss"] / 2
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_a_family_trains_as_in_eager_mode(name, attention, record_property):
    compiled, plain = portico.ort.compile(make_model(name, attention), strict=True), make_model(name, attention)
    assert_gradients_are_eager(compiled, [make_batch(name, *shape) for shape in SHAPES], TOLERANCE)
    # Evaluations above went through batch norms.
    compiled.load_state_dict(plain.state_dict())
    losses, expected = train(compiled, name), train(plain, name)
    pairs = list(zip(compiled.named_parameters(), plain.parameters(), strict=True))
    record_property("worst_loss", max(abs(ours - theirs) for ours, theirs in zip(losses, expected, strict=True)))
    record_property("worst_weight", max((ours - theirs).abs().max().item() for (_, ours), theirs in pairs))
    assert losses == pytest.approx(expected, abs=AFTER_TWENTY_STEPS)
    for (parameter, ours), theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=AFTER_TWENTY_STEPS, rtol=1e-4, msg=parameter)
    report = get_compiled_call(compiled).report
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"], "one graph for every shape"
    assert not report.graph_breaks
    faster = set(map(str, FASTER_IN_TORCH | {torch.ops.aten.threshold_backward.default}))
    # A ReLU or a sum between two convolutions stays with them.
    assert report.fallbacks.keys() <= faster or "aten.convolution.default" in report.fallbacks


# Float32 sums in another order; mobilebert, which has no layer norm, comes to 6e-6.
MORE_TOLERANCE = 1e-5


# Torch's tracer instantiates the function of its own that bloom differentiates.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_FAMILIES)
def test_a_step_of_another_family_is_that_of_eager_mode(name):
    torch.manual_seed(0)
    # Swin's windows are tensors of strides of their own, which torch makes.
    model = portico.ort.compile(MORE_FAMILIES[name].make().train(), strict=name != "swin")
    assert_gradients_are_eager(model, [make_batch(name, 3, 8), make_batch(name, 2, 12)], MORE_TOLERANCE)
    report = get_compiled_call(model).report
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"], "one graph for every shape"


PRODUCTS = {"MatMul", "Gemm"}


def test_training_experts_is_refused_where_torch_cannot_trace_it(monkeypatch):
    model = portico.ort.compile(MORE_FAMILIES["mixtral"].make(num_hidden_layers=1).train())
    monkeypatch.setattr(releases.transformers, "__version__", "5.22.2")
    with pytest.raises(
        MissingPackageError,
        match=r"Training a mixture of experts in ONNX Runtime needs transformers 5\.23 or newer, but 5\.22\.2 is",
    ):
        model(**make_batch("mixtral", 2, 4))


# Mixtral: 6 of attention and 2 of router and head forward, 13 and 4 backward; 8 of the 4 experts forward, 16 backward.
# DeBERTa: 11 forward, of which 5 of disentangled attention; 22 backward.
@pytest.mark.parametrize(
    ("name", "num_products"),
    [
        pytest.param("mixtral", 49, marks=since_transformers("5.23")),
        pytest.param("deberta-v1", 33, marks=pytest.mark.slow),
    ],
)
def test_each_matrix_product_of_a_layer_runs_in_onnxruntime(name, num_products, monkeypatch):
    models = []
    monkeypatch.setattr(backend, "translate", lambda *args: models.append(translate(*args)) or models[-1])
    torch.manual_seed(0)
    model = MORE_FAMILIES[name].make(num_hidden_layers=1).train()
    model = portico.ort.compile(model, strict=True, settings=SessionSettings(cache_dir="off"))
    assert_gradients_are_eager(model, [make_batch(name, 3, 8)], MORE_TOLERANCE)
    assert sum(node.op_type in PRODUCTS for model in models for node in model.graph.node) == num_products
    assert not get_compiled_call(model).report.fallbacks
    assert len(get_compiled_call(model).report.graphs) == 2


QUICK_EVALUATIONS = ("convolutional", "perceptron")


@pytest.mark.parametrize(
    "name", [name if name in QUICK_EVALUATIONS else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_a_family_is_evaluated_in_onnxruntime_altogether(name):
    model = portico.ort.compile(make_model(name).eval(), strict=True)
    for rows, length in ((3, 7), (2, 9)):
        batch = make_batch(name, rows, length)
        with torch.no_grad(), running_in_torch(model):
            expected = model(**batch)["loss"]
        with torch.no_grad():
            torch.testing.assert_close(model(**batch)["loss"], expected, atol=2e-6, rtol=2e-6)
    assert [graph.kind for graph in get_compiled_call(model).report.graphs] == ["inference"]
