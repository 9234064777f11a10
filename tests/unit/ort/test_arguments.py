"""Values of ``ORTTrainingArguments`` and of ``SessionSettings``."""

import json

import lightning
import pytest
import transformers

import portico.ort
from models import toy_arguments
from portico import InputError, ORTSeq2SeqTrainingArguments, ORTTrainingArguments
from portico.ort import settings


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    for make in (
        lambda: lightning.Trainer(accelerator="ort", strategy="ort", logger=False),
        lambda: ORTTrainingArguments(tmp_path),
        portico.ORTStrategy,
        lambda: toy_arguments(tmp_path, strategy="ort").device,
    ):
        with pytest.raises(InputError, match=r"needs onnxruntime and onnx, not installed here; .*portico\[ort\]"):
            make()
    assert not portico.ORTAccelerator.is_available()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"onnx_log_level": 9}, "`onnx_log_level=9` is unknown; set it to one of VERBOSE, INFO"),
        ({"save_onnx": "false"}, "`save_onnx='false'` cannot be used; set it to True or False"),
        ({"save_onnx": "plain"}, "`save_onnx='plain'` cannot be used; set it to True or False, or one of 'standard'"),
        ({"evaluate_in_ort": None}, "`evaluate_in_ort=None` cannot be used; set it to True or False"),
        ({"onnx_cache_dir": 5}, "`onnx_cache_dir=5` cannot be used; set it to a string, or None"),
        (
            {"onnx_prefix": "models/mine"},
            "`onnx_prefix='models/mine'` is not a plain file name; set it without folder",
        ),
        ({"onnx_prefix": "mine.onnx"}, "`onnx_prefix='mine.onnx'` is not a plain file name; .* without `.onnx`"),
        ({"optim": "adamw_ort"}, "`optim='adamw_ort'` is unknown; set it to one of adamw_ort_fused, "),
    ],
)
def test_values_that_mean_nothing_are_refused(changes, message, tmp_path):
    with pytest.raises(InputError, match=message):
        toy_arguments(tmp_path, ORTTrainingArguments, **changes)


def test_settings_without_effect_are_announced(tmp_path, caplog):
    chosen = {"torch_compile_mode": "reduce-overhead", "optim": "adamw_ort_fused", "optim_args": "eps=1"}
    args = toy_arguments(tmp_path, ORTTrainingArguments, **chosen)
    assert (args.torch_compile, args.torch_compile_backend, args.torch_compile_mode) == (False, None, None)
    assert "`torch_compile` and its options have no effect: the model is compiled for ONNX Runtime" in caplog.text
    assert "`optim_args='eps=1'` has no effect on `optim='adamw_ort_fused'`" in caplog.text


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


@pytest.mark.parametrize("arguments_class", [ORTTrainingArguments, ORTSeq2SeqTrainingArguments])
@pytest.mark.parametrize("optim", [None, "adamw_ort_fused", "adamw_torch", "adafactor"])
def test_optimizers_on_the_command_line_and_in_a_file(arguments_class, optim, tmp_path, capsys):
    parser = transformers.HfArgumentParser(arguments_class)
    chosen = {} if optim is None else {"optim": optim}
    line = ["--output_dir", str(tmp_path), *(part for name, value in chosen.items() for part in (f"--{name}", value))]
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({"output_dir": str(tmp_path), **chosen}))
    expected = transformers.TrainingArguments(str(tmp_path)).optim.value if optim is None else optim
    for (args,) in (parser.parse_args_into_dataclasses(line), parser.parse_json_file(str(file))):
        assert args.optim.value == args.to_dict()["optim"] == expected
    with pytest.raises(SystemExit):
        parser.parse_args_into_dataclasses([*line, "--optim", "adamw_ort"])
    assert "invalid choice: 'adamw_ort' (choose from " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected"),
    [([], False), (["--save_onnx"], True), (["--save_onnx", "no"], False), (["--save_onnx", "standard"], "standard")],
)
def test_the_kind_of_file_on_the_command_line(line, expected, tmp_path):
    parser = transformers.HfArgumentParser(ORTTrainingArguments)
    (args,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), *line])
    assert args.save_onnx == expected


def test_a_kind_of_file_that_is_unknown_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        transformers.HfArgumentParser(ORTTrainingArguments).parse_args_into_dataclasses(["--save_onnx", "plain"])
    assert "Truthy value expected: got plain" in capsys.readouterr().err
