import pytest
import torch

import portico.ort
from portico.ort.api import compiled_call, running_in_torch
from unit.ort.families import FAMILIES, make_batch, make_model

QUICK = ("convolutional", "perceptron")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_a_family_is_evaluated_in_onnxruntime_altogether(name):
    model = portico.ort.compile(make_model(name).eval(), strict=True)
    for rows, length in ((3, 7), (2, 9)):
        batch = make_batch(name, rows, length)
        with torch.no_grad(), running_in_torch(model):
            expected = model(**batch)["loss"]
        with torch.no_grad():
            torch.testing.assert_close(model(**batch)["loss"], expected, atol=2e-6, rtol=2e-6)
    assert [graph.kind for graph in compiled_call(model).report.graphs] == ["inference"]
