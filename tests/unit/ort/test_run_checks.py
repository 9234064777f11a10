"""Accelerators and precisions that ONNX Runtime does not compute on, or in."""

import lightning
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import portico.ort
from portico import InputError, ORTTrainingArguments
from portico.errors import InputTypeError
from portico.ort import settings
from portico.ort.runtime import cache_folder
from unit.ort.test_ort_strategy import Classifier, fitted
from unit.toy import toy_arguments


@pytest.mark.skipif(torch.cuda.is_available(), reason="names a GPU where there is none")
def test_lightning_names_the_accelerators_that_are_here():
    with pytest.raises(MisconfigurationException, match=r"`CUDAAccelerator` can not run .*\[.*'ort'.*\]"):
        lightning.Trainer(accelerator="cuda", logger=False)


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    for make in (
        lambda: lightning.Trainer(accelerator="ort", strategy="ort", logger=False),
        lambda: ORTTrainingArguments(tmp_path),
        lambda: toy_arguments(tmp_path, strategy="ort").device,
    ):
        with pytest.raises(InputError, match=r"needs onnxruntime and onnx, not installed here; .*portico\[ort\]"):
            make()


def test_the_accelerator_alone_would_train_in_torch(tmp_path):
    with pytest.raises(
        InputError, match=r"`accelerator='ort'`, but \w+Strategy would run the model in torch; set `str"
    ):
        fitted(tmp_path, accelerator="ort", devices=1)


def test_another_accelerator_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"does not compute on IPUAccelerator; set `accelerator='ort'`, 'cpu' or"):
        fitted(tmp_path, accelerator="ipu", strategy="ort")


@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA is not available")
def test_float16_is_not_mixed_on_a_cpu(tmp_path):
    with pytest.raises(InputError, match=r"`precision='16-mixed'` uses float16, which .* not support on a CPU; set"):
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"torch_compile": True}, "choose a compiler other than ONNX Runtime, .* anyway; leave them out"),
        ({"onnx_log_level": 9}, "`onnx_log_level=9` is unknown; set it to one of VERBOSE, INFO"),
        ({"save_onnx": "false"}, "`save_onnx='false'` cannot be used; set it to true or false"),
        ({"evaluate_in_ort": None}, "`evaluate_in_ort=None` cannot be used; set it to true or false"),
        ({"onnx_cache_dir": 5}, "`onnx_cache_dir=5` cannot be used; set it to a text, or null"),
        ({"onnx_prefix": "models/mine"}, "`onnx_prefix='models/mine'` is not a plain file name; set it without folder"),
        ({"onnx_prefix": "mine.onnx"}, "`onnx_prefix='mine.onnx'` is not a plain file name; .* without `.onnx`"),
        ({"optim": "adamw_ort"}, "`optim='adamw_ort'` is unknown; set it to one of adamw_ort_fused, "),
        (
            {"optim": "adamw_ort_fused", "optim_args": "eps=1"},
            "`optim_args='eps=1'` has no effect on `optim='adamw_ort_fused'`, .* leave it out",
        ),
    ],
)
def test_values_that_mean_nothing_are_refused(changes, message, tmp_path):
    with pytest.raises(InputError, match=message):
        toy_arguments(tmp_path, ORTTrainingArguments, **changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": 0}, "`num_threads=0` is not positive; set it to 1 or more"),
        ({"log_level": 9}, "`log_level=9` is out of range; set it to a number from 0 to 4"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        portico.ort.SessionSettings(**options)


def test_only_modules_are_compiled():
    with pytest.raises(InputTypeError, match=r"`model` is a str; give a `torch.nn.Module`"):
        portico.ort.compile("bert")


@pytest.mark.parametrize("spelling", ["off", "OFF", "Off"])
def test_off_is_no_folder_however_it_is_spelt(spelling, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cache_folder(spelling) is None
    assert not list(tmp_path.iterdir())
