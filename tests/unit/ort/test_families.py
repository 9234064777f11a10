import pytest
import torch

import portico.ort
from portico.ort.compiling import compiled_call, running_in_torch
from unit.ort.families import FAMILIES, make_batch, make_model

QUICK = {("bert-qa", "sdpa"), ("gpt2", "sdpa"), ("convolutional", "sdpa"), ("perceptron", "sdpa")}
HAVE_NO_ATTENTION = ("convolutional", "perceptron")
SHAPES = ((3, 7), (2, 9), (4, 12))
# Relative to the largest gradient: float32 sums in another order.
TOLERANCE = 2e-6

CASES = [
    pytest.param(
        name, attention, marks=() if (name, attention) in QUICK else pytest.mark.slow, id=f"{name}-{attention}"
    )
    for name in FAMILIES
    for attention in ("sdpa", "eager")
    if name not in HAVE_NO_ATTENTION or attention == "sdpa"
]


def loss_and_gradients(model, batch):
    """Return the loss of one step and every gradient; dropout is drawn from the same seed each time."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(**batch)["loss"]
    loss.backward()
    return loss.item(), {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def train(model, batches, learning_rate=0.05):
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    torch.manual_seed(2)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_a_family_gives_the_loss_and_gradients_of_eager_mode(name, attention):
    model = portico.ort.compile(make_model(name, attention))
    for rows, length in SHAPES:
        batch = make_batch(name, rows, length)
        with running_in_torch(model):
            loss, gradients = loss_and_gradients(model, batch)
        found_loss, found = loss_and_gradients(model, batch)
        assert found_loss == pytest.approx(loss, abs=TOLERANCE)
        assert found.keys() == gradients.keys()
        largest = max(gradient.abs().max() for gradient in gradients.values())
        for parameter, gradient in gradients.items():
            assert (found[parameter] - gradient).abs().max() <= TOLERANCE * largest, parameter
    report = compiled_call(model).report
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"], "one graph for every shape"
    assert not report.graph_breaks


@pytest.mark.parametrize("name", ["perceptron", pytest.param("bert-qa", marks=pytest.mark.slow)])
def test_twenty_steps_end_with_the_weights_of_eager_mode(name):
    batches = [make_batch(name, 2 + step % 3, 7 + step % 4) for step in range(20)]
    plain, compiled = make_model(name), portico.ort.compile(make_model(name))
    assert train(compiled, batches) == pytest.approx(train(plain, batches), abs=1e-5)
    for (parameter, ours), theirs in zip(compiled.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4, msg=parameter)
