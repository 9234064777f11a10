"""Values of ``ORTTrainingArguments`` and of ``SessionSettings``."""

import lightning
import pytest

import portico.ort
from models import toy_arguments
from portico import InputError, ORTTrainingArguments
from portico.ort import settings


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    for make in (
        lambda: lightning.Trainer(accelerator="ort", strategy="ort", logger=False),
        lambda: ORTTrainingArguments(tmp_path),
        lambda: toy_arguments(tmp_path, strategy="ort").device,
    ):
        with pytest.raises(InputError, match=r"needs onnxruntime and onnx, not installed here; .*portico\[ort\]"):
            make()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"torch_compile": True}, "choose a compiler other than ONNX Runtime, .* anyway; leave them out"),
        ({"onnx_log_level": 9}, "`onnx_log_level=9` is unknown; set it to one of VERBOSE, INFO"),
        ({"save_onnx": "false"}, "`save_onnx='false'` cannot be used; set it to true or false"),
        ({"evaluate_in_ort": None}, "`evaluate_in_ort=None` cannot be used; set it to true or false"),
        ({"onnx_cache_dir": 5}, "`onnx_cache_dir=5` cannot be used; set it to a string, or null"),
        (
            {"onnx_prefix": "models/mine"},
            "`onnx_prefix='models/mine'` is not a plain file name; set it without folder",
        ),
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
