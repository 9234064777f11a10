"""Strategies: parts of a ``LightningModule``, evaluation, several processes, and what is refused."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader

import portico
import portico.ort
from portico import InputError
from portico.ort.api import get_compiled_call

QUIET = {
    "max_epochs": 2,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.seen.append(self.net(batch[0]).sum().item())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


def fitted(folder, make=Classifier, **placement):
    model = make()
    points = torch.randn(18, 4, generator=torch.Generator().manual_seed(3))
    loader = DataLoader([(point, int(point.sum() > 0)) for point in points], batch_size=4)
    torch.manual_seed(1)
    trainer = lightning.Trainer(**QUIET, default_root_dir=folder, **placement)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*num_workers.*|.*LeafSpec")
        trainer.fit(model, loader, loader)
    return model, trainer


def kinds(model):
    return [graph.kind for graph in get_compiled_call(model.net).report.graphs]


def test_lightning_knows_it_by_name_and_the_numbers_are_eager_modes(tmp_path, capsys):
    plain, _ = fitted(tmp_path, accelerator="cpu")
    model, trainer = fitted(tmp_path / "new", accelerator="ort", strategy="ort")
    assert isinstance(trainer.strategy, portico.ORTStrategy)
    assert isinstance(trainer.accelerator, portico.ORTAccelerator)
    assert model.seen == pytest.approx(plain.seen, abs=1e-5)
    assert kinds(model) == ["forward", "backward", "inference"]
    assert "`net`: In ONNX Runtime: " in capsys.readouterr().out
    assert list(json.loads((tmp_path / "new" / "ort_report.json").read_text())) == ["net"]
    assert not get_compiled_call(model.net).is_on, "after the run the model is a plain one"


def test_evaluation_in_torch(tmp_path):
    plain, _ = fitted(tmp_path, accelerator="cpu")
    model, _ = fitted(tmp_path, accelerator="cpu", strategy=portico.ORTStrategy(evaluate_in_ort=False))
    assert model.seen == pytest.approx(plain.seen, abs=1e-5)
    assert kinds(model) == ["forward", "backward"]


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


# Dynamo reads `.grad` of the tensors that one compiled part hands to the next.
reads_gradients = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@reads_gradients
@pytest.mark.parametrize("module", [Listed, Piecewise])
def test_the_numbers_are_those_of_torch(module, tmp_path):
    plain, _ = fitted(tmp_path, make=module, accelerator="cpu")
    model, _ = fitted(tmp_path, make=module, accelerator="ort", strategy="ort")
    assert model.seen == pytest.approx(plain.seen, abs=1e-5)


@reads_gradients
def test_what_a_list_holds_is_trained_in_onnxruntime(tmp_path, caplog):
    model, _ = fitted(tmp_path, make=Listed, accelerator="ort", strategy="ort")
    for part in (model.net[0], model.net[1]["last"]):
        assert {"forward", "backward"} <= {graph.kind for graph in get_compiled_call(part).report.graphs}
    assert "was not trained in ONNX Runtime" not in caplog.text


@reads_gradients
def test_a_part_that_is_not_called_as_a_whole_is_named(tmp_path, caplog):
    model, _ = fitted(tmp_path, make=Piecewise, accelerator="ort", strategy="ort")
    assert "`net` was not trained in ONNX Runtime: its `forward` was not called, or torch could not" in caplog.text
    assert {graph.kind for graph in get_compiled_call(model.net).report.graphs} == {"inference"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="names a GPU where there is none")
def test_lightning_names_the_accelerators_that_are_here():
    with pytest.raises(MisconfigurationException, match=r"`CUDAAccelerator` can not run .*\[.*'ort'.*\]"):
        lightning.Trainer(accelerator="cuda", logger=False)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (
            {"accelerator": "cpu", "devices": 2, "strategy": "ort"},
            "2 devices are requested; set `strategy='ort_ddp'`, or `devices=1`",
        ),
        (
            {"accelerator": "ort", "devices": 1},
            r"`accelerator='ort'`, but \w+Strategy would run the model in torch; set `str",
        ),
        (
            {"accelerator": "ipu", "strategy": "ort"},
            r"does not compute on IPUAccelerator; set `accelerator='ort'`, 'cpu' or",
        ),
        (
            {"accelerator": "ort", "strategy": "ort", "precision": "16-mixed"},
            r"`precision='16-mixed'` uses float16, which .* not support on a CPU; set",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA is not available")
def test_placements_that_cannot_be_are_refused(placement, message, tmp_path):
    with pytest.raises(InputError, match=message):
        fitted(tmp_path, **placement)


class Looking(Classifier):
    """Takes note of the precision that its network computes in, which is told apart by what comes out."""

    def training_step(self, batch, batch_idx):
        self.seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        with torch.autocast("cpu", enabled=False):
            return self.net(batch[0]).sum()

    def validation_step(self, batch, batch_idx):
        pass


def test_bfloat16_is_mixed_where_the_model_is(tmp_path):
    model, trainer = fitted(tmp_path, make=Looking, accelerator="ort", strategy="ort", precision="bf16-mixed")
    assert isinstance(trainer.precision_plugin, MixedPrecision)
    assert set(model.seen) == {(True, torch.bfloat16)}


CUDA = torch.device("cuda", 1)


def test_the_strategy_places_the_model_on_the_device_of_the_accelerator():
    strategy = portico.ORTStrategy()
    strategy.parallel_devices = [CUDA]
    assert strategy.root_device == CUDA


SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    path = os.pathsep.join([str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")])
    for devices in (1, 2):
        subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path), str(devices)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=900,
        )
    one, two = (torch.load(tmp_path / f"{devices}.pt") for devices in (1, 2))
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["kinds"] == two["kinds"] == ["forward", "backward"]
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, atol=1e-6, rtol=1e-5, msg=name)
