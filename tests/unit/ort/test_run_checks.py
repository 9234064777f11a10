"""Accelerators and precisions that ONNX Runtime does not compute on, or in."""

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from portico import InputError, ORTTrainingArguments
from unit.ort.test_ort_strategy import Classifier, fitted
from unit.toy import toy_arguments


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_the_accelerator_alone_would_train_in_torch(strategy, tmp_path):
    with pytest.raises(
        InputError, match=r"`accelerator='ort'`, but \w+Strategy would run the model in torch; set `str"
    ):
        fitted(tmp_path, accelerator="ort", strategy=strategy, devices=1)


def test_another_accelerator_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"does not compute on IPUAccelerator; set `accelerator='ort'`, 'cpu' or"):
        fitted(tmp_path, accelerator="ipu", strategy="ort")


@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA is not available")
def test_float16_is_not_mixed_on_a_cpu(tmp_path):
    with pytest.raises(InputError, match=r"`precision='16-mixed'` asks for float16, which .* not mix on a CPU; set"):
        fitted(tmp_path, accelerator="ort", strategy="ort", precision="16-mixed")


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


def test_another_compiler_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"compile for another backend than ONNX Runtime, .* anyway; leave them"):
        toy_arguments(tmp_path, ORTTrainingArguments, torch_compile=True)
