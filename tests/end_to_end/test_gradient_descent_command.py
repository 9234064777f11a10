"""AllenNLP's trainer from the command line, in processes of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALL = ("data.num_train=96", "data.num_validation=32", "trainer.patience=null", "paths.output_dir=run")


def command(*overrides, cwd, **environment):
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "+experiment=gradient_descent", *SMALL, *overrides],
        cwd=cwd,
        env={**os.environ, "PYTHONWARNINGS": "default", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_file_of_allennlp_is_trained_and_the_run_continued(tmp_path):
    file = tmp_path / "config.jsonnet"
    file.write_text(
        '{trainer: {num_epochs: std.parseInt(std.extVar("EPOCHS")), optimizer: "adam", cuda_device: -1}}',
        encoding="utf-8",
    )
    config = f"allennlp_config={file}"
    done = command(config, cwd=tmp_path, EPOCHS="1")
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.yaml", "best.th", "metrics.json", "all_results.json", "model_state_e1_b0.th", "log"} <= written
    again = command(config, cwd=tmp_path, EPOCHS="1")
    assert again.returncode == 1
    assert "already holds a run" in again.stderr
    more = command(config, "args.resume_from_checkpoint=true", cwd=tmp_path, EPOCHS="2")
    assert more.returncode == 0, more.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["training_start_epoch"], metrics["epoch"]) == (1, 1)


def test_an_unknown_name_is_refused_in_a_paragraph(tmp_path):
    done = command("trainer.optimizer.type=adamx", cwd=tmp_path)
    assert done.returncode == 1
    assert "error: 'adamx' is not a registered name for Optimizer; did you mean" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
