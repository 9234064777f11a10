"""What of a ``LightningModule`` runs in ONNX Runtime, and what is said of the rest."""

import pytest
import torch
from torch import nn

from portico.ort.api import compiled_call
from unit.ort.test_ort_strategy import Classifier, fitted


class Listed(Classifier):
    """Calls what lists and dicts hold."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.ModuleList([nn.Linear(4, 8), nn.ModuleDict({"last": nn.Linear(8, 2)})])

    def training_step(self, batch, batch_idx):
        first, last = self.net[0], self.net[1]["last"]
        loss = nn.functional.cross_entropy(last(first(batch[0]).relu()), batch[1])
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.seen.append(self.net[0](batch[0]).sum().item())


class Stepwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def encode(self, x):
        return self.first(x).relu()

    def forward(self, x):
        return self.last(self.encode(x))


class Piecewise(Classifier):
    """Never calls its network as a whole."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = Stepwise()

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net.last(self.net.encode(batch[0])), batch[1])
        self.seen.append(loss.item())
        return loss


# Torch looks at the gradient of what one compiled part hands to the next.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.mark.parametrize("module", [Listed, Piecewise])
def test_the_numbers_are_those_of_torch(module, tmp_path):
    plain, _ = fitted(tmp_path, make=module, accelerator="cpu")
    model, _ = fitted(tmp_path, make=module, accelerator="ort", strategy="ort")
    assert model.seen == pytest.approx(plain.seen, abs=1e-5)


def test_what_a_list_holds_is_trained_in_onnxruntime(tmp_path, caplog):
    model, _ = fitted(tmp_path, make=Listed, accelerator="ort", strategy="ort")
    for part in (model.net[0], model.net[1]["last"]):
        assert {"forward", "backward"} <= {graph.kind for graph in compiled_call(part).report.graphs}
    assert "was not trained in ONNX Runtime" not in caplog.text


def test_a_part_that_is_not_called_as_a_whole_is_named(tmp_path, caplog):
    model, _ = fitted(tmp_path, make=Piecewise, accelerator="ort", strategy="ort")
    assert "`net` was not trained in ONNX Runtime: its `forward` was not called, or torch could not" in caplog.text
    assert {graph.kind for graph in compiled_call(model.net).report.graphs} == {"inference"}
