import pytest
import torch

import portico.ort
from portico.ort.api import compiled_call
from unit.ort.gradients import assert_gradients_are_eager
from unit.ort.more_families import MORE_FAMILIES

# Float32 sums in another order; mobilebert, which has no layer norm, comes to 6e-6.
TOLERANCE = 1e-5


def make_batch(name, rows, length):
    torch.manual_seed(rows)
    return MORE_FAMILIES[name].batch(rows, length)


# Torch's tracer instantiates the function of its own that bloom differentiates.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_FAMILIES)
def test_a_step_of_another_family_is_that_of_eager_mode(name):
    torch.manual_seed(0)
    model = portico.ort.compile(MORE_FAMILIES[name].make().train(), strict=True)
    assert_gradients_are_eager(model, [make_batch(name, 3, 8), make_batch(name, 2, 12)], TOLERANCE)
    report = compiled_call(model).report
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"], "one graph for every shape"
