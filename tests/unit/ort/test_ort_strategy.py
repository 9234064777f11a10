import json
import warnings

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import portico.ort
from portico import InputError
from portico.ort import settings
from portico.ort.api import compiled_call

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
    return [graph.kind for graph in compiled_call(model.net).report.graphs]


def test_lightning_knows_it_by_name_and_the_numbers_are_eager_modes(tmp_path, capsys):
    plain, _ = fitted(tmp_path, accelerator="cpu")
    model, trainer = fitted(tmp_path, accelerator="ort", strategy="ort")
    assert isinstance(trainer.strategy, portico.ORTStrategy)
    assert isinstance(trainer.accelerator, portico.ORTAccelerator)
    assert model.seen == pytest.approx(plain.seen, abs=1e-5)
    assert kinds(model) == ["forward", "backward", "inference"]
    assert "`net`: In ONNX Runtime: " in capsys.readouterr().out
    assert list(json.loads((tmp_path / "ort_report.json").read_text())) == ["net"]
    assert not compiled_call(model.net).is_on, "after the run the model is a plain one"


def test_evaluation_in_torch(tmp_path):
    plain, _ = fitted(tmp_path, accelerator="cpu")
    model, _ = fitted(tmp_path, accelerator="cpu", strategy=portico.ORTStrategy(evaluate_in_ort=False))
    assert model.seen == pytest.approx(plain.seen, abs=1e-5)
    assert kinds(model) == ["forward", "backward"]


def test_several_devices_need_the_strategy_for_several_processes():
    with pytest.raises(InputError, match="2 devices are requested; set `strategy='ort_ddp'`, or `devices=1`"):
        lightning.Trainer(accelerator="cpu", devices=2, strategy="ort")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs onnxruntime and onnx, not installed here; .*portico\[ort\]"):
        portico.ORTStrategy()
    assert not portico.ORTAccelerator.is_available()
