"""The commands of the README, cut down, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = (
    "debug=default",
    "model.hidden_size=32",
    "model.num_hidden_layers=1",
    "model.num_attention_heads=2",
    "model.intermediate_size=32",
    "args.use_cpu=true",
)


def command(*overrides, cwd, **environment):
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *overrides],
        cwd=cwd,
        env={**os.environ, "PYTHONWARNINGS": "default", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_main_job_leaves_its_files(tmp_path):
    done = command("+experiment=mrc", *SMALL, "paths.output_dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Exact match" in done.stdout
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.yaml", "report.html", "all_results.json", "trainer_state.json", "eval_predictions.json"} <= written
    again = command("+experiment=mrc", *SMALL, "paths.output_dir=run", cwd=tmp_path)
    assert again.returncode == 1
    assert "already holds a run" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_sweep_writes_one_folder_a_run(tmp_path):
    sweep = ("-m", "+experiment=mrc", "args.learning_rate=1e-4,3e-4")
    done = command(*sweep, *SMALL, "paths.sweep_dir=sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reports = sorted((tmp_path / "sweep").glob("*/report.html"))
    assert len(reports) == 2
    rates = {
        json.loads((report.parent / "trainer_state.json").read_text())["log_history"][1]["learning_rate"]
        for report in reports
    }
    assert len(rates) == 2


BAD = {
    "a missing file": (["data.train_file=no.json", "data.validation_file=no.json"], "no.json"),
    "not SQuAD": (["data.train_file=list.json", "data.validation_file=list.json"], "list.json"),
    "a wrong answer_start": (["data.train_file=moved.json", "data.validation_file=moved.json"], "answer_start"),
    "an empty set": (["data.train_file=empty.json", "data.validation_file=empty.json"], "empty.json"),
    "an unknown key": (["args.learning_rat=1"], "learning_rate"),
    "too long a sequence": (["preprocess.max_seq_length=256", "model.max_position_embeddings=128"], "max_seq_length"),
    "too wide a stride": (["preprocess.doc_stride=192", "preprocess.max_seq_length=192"], "doc_stride"),
}


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    question = {"id": "q1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 3}]}
    moved = {"data": [{"title": "t", "paragraphs": [{"context": "Ada wrote it.", "qas": [question]}]}]}
    contents = {"list.json": {"rows": [1, 2]}, "moved.json": moved, "empty.json": {"version": "v2.0", "data": []}}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_paragraph(what, bad_files):
    overrides, named = BAD[what]
    done = command("+experiment=mrc", *SMALL, *overrides, cwd=bad_files)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    paragraph = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(paragraph) == 1
    assert named in paragraph[0]
    assert not (bad_files / "outputs").exists()


def test_the_whole_error_on_request(bad_files):
    overrides, _ = BAD["a missing file"]
    done = command("+experiment=mrc", *SMALL, *overrides, cwd=bad_files, HYDRA_FULL_ERROR="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
