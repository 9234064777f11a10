import pytest
import torch

import portico.ort
from portico.ort.api import compiled_call
from unit.ort.families import FAMILIES, make_batch, make_model
from unit.ort.gradients import assert_gradients_are_eager

QUICK = {("bert-qa", "sdpa"), ("gpt2", "sdpa"), ("convolutional", "sdpa"), ("perceptron", "sdpa")}
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
    report = compiled_call(compiled).report
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"], "one graph for every shape"
    assert not report.graph_breaks
    assert not report.fallbacks
