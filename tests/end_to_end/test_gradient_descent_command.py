"""AllenNLP's trainer from the command line: once in its own process, then here."""

import json
from pathlib import Path

import pytest

from fresh_process import python

ROOT = Path(__file__).parents[2]
SMALL = ("data.num_train=96", "data.num_validation=32", "trainer.patience=null", "paths.output_dir=run")
COMMAND = ("+experiment=gradient_descent", *SMALL)

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_file_of_allennlp_is_trained_and_the_run_continued(tmp_path, monkeypatch, command_line, capsys):
    file = tmp_path / "config.jsonnet"
    file.write_text(
        '{trainer: {num_epochs: std.parseInt(std.extVar("EPOCHS")), optimizer: "adam", cuda_device: -1}}',
        encoding="utf-8",
    )
    command = (*COMMAND, f"allennlp_config={file}")
    done = python(ROOT / "train.py", *command, folder=tmp_path, EPOCHS="1")
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.yaml", "best.th", "metrics.json", "all_results.json", "model_state_e1_b0.th", "log"} <= written
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPOCHS", "2")
    assert command_line(*command) == 1
    assert "already holds a run" in capsys.readouterr().err
    assert command_line(*command, "args.resume_from_checkpoint=true") == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["training_start_epoch"], metrics["epoch"]) == (1, 1)


def test_an_unknown_name_is_refused_in_a_paragraph(tmp_path, monkeypatch, command_line, capsys):
    monkeypatch.chdir(tmp_path)
    assert command_line(*COMMAND, "trainer.optimizer.type=adamx") == 1
    assert "error: 'adamx' is not a registered name for Optimizer; did you mean" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
