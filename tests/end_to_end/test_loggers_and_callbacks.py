"""Each logger and callback of `conf` in a run of three steps: what it leaves behind, or which package it lacks."""

import csv
import json
import logging
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import fresh_process

ROOT = Path(__file__).parents[2]

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = (
    "experiment=text_classification",
    *("data.num_train=24", "data.num_validation=8", "args.logging_steps=1", "args.use_cpu=true"),
    *(
        "model.hidden_size=16",
        "model.num_hidden_layers=1",
        "model.num_attention_heads=2",
        "model.intermediate_size=16",
    ),
    *("args.disable_tqdm=true", "print_config=false", "paths.output_dir=run"),
)


@pytest.fixture
def run(monkeypatch, tmp_path, command_line):
    monkeypatch.chdir(tmp_path)

    def run(*overrides, steps=("args.max_steps=3",)):
        return command_line(*SMALL, *steps, *overrides)

    return run


def test_several_loggers_get_the_same_numbers(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run("logger=[csv,tensorboard]", "callbacks=lr_monitor") == 0
    with (tmp_path / "run/csv/version_0/metrics.csv").open() as stream:
        table = list(csv.DictReader(stream))
    history = json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert [float(row["loss"]) for row in table if row.get("loss")] == pytest.approx(losses)
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert [one.value for one in events.Scalars("loss")] == pytest.approx(losses)
    assert any(name.startswith("lr-") for name in events.Tags()["scalars"])
    for logged in ("csv/version_0", "tensorboard"):
        assert "num_train: 24" in (tmp_path / "run" / logged / "hparams.yaml").read_text()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "comet"])
def test_a_logger_without_its_package_says_what_to_install(name, run, capsys):
    package = {"comet": "comet_ml"}.get(name, name)
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    assert run(f"logger={name}") == 1
    message = capsys.readouterr().err
    assert message.startswith(f"error: The entry `logger.{name}` needs {package}, which is not installed")
    assert f"`pip install {package}`" in message


def needs(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


@pytest.mark.slow
@needs("mlflow")
def test_mlflow_gets_the_numbers(run, tmp_path):
    from mlflow import MlflowClient

    assert run("logger=[csv,mlflow]", "name=tried") == 0
    client = MlflowClient("sqlite:///mlflow.db")
    (recorded,) = client.search_runs([client.get_experiment_by_name("tried").experiment_id])
    history = json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert [one.value for one in client.get_metric_history(recorded.info.run_id, "loss")] == pytest.approx(losses)
    assert recorded.data.params["data/num_train"] == "24"


@pytest.mark.slow
@needs("wandb")
def test_wandb_records_a_run_offline(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, "args.max_steps=3"]
    command += ["logger=[csv,wandb]", "logger.wandb.offline=true", "tags=[tried]"]
    # In a process of its own: the record is complete when the process has ended.
    environment = fresh_process.environment() | {"WANDB_SILENT": "true"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300)
    (record,) = (tmp_path / "run/wandb").glob("offline-run-*/*.wandb")
    content = record.read_bytes()
    assert b"eval_accuracy" in content
    assert b"tried" in content
    assert b"num_train" in content


@pytest.mark.slow
@needs("comet_ml")
def test_comet_runs_offline(run, tmp_path):
    assert run("logger=[csv,comet]", "logger.comet.online=false") == 0
    assert (tmp_path / "run/csv/version_0/metrics.csv").is_file()


def test_callbacks_of_lightning_work_together_with_those_of_hugging_face(run, capsys):
    callbacks = "callbacks=[early_stopping,rich_progress_bar,rich_model_summary]"
    assert run(callbacks, "args.metric_for_best_model=eval_loss") == 0
    assert "Total params" in capsys.readouterr().out


def test_the_finders_suggest_a_learning_rate_and_a_batch_size(run, tmp_path, caplog, monkeypatch):
    # The command configures the root logger, where `caplog` listens.
    monkeypatch.setattr(logging.getLogger("transformers.trainer"), "handlers", [caplog.handler])
    settings = ("callbacks.lr_finder.num_training_steps=13", "callbacks.batch_size_finder.max_val=4")
    assert run("callbacks=[lr_finder,batch_size_finder]", *settings) == 0
    assert "Suggested `per_device_train_batch_size`: 4; no larger size was tried." in caplog.text
    assert (tmp_path / "run/lr_finder.csv").read_text().startswith("lr,loss\n1e-08,")


def test_the_profiler_writes_a_table_and_a_trace(run, tmp_path):
    settings = ("callbacks.profiler.skipped_steps=1", "callbacks.profiler.profiled_steps=1")
    assert run("debug=profiler", *settings) == 0
    assert "aten::addmm" in (tmp_path / "run/profile/operations.txt").read_text()
    assert json.loads((tmp_path / "run/profile/trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize("debug", ["default", "fdr", "overfit"])
def test_debugging_runs_are_short(debug, run, tmp_path):
    is_shortest = debug in ("default", "fdr")
    assert run(f"debug={debug}", "logger=csv", steps=() if is_shortest else ("args.max_steps=3",)) == 0
    state = json.loads((tmp_path / "run/trainer_state.json").read_text())
    assert state["global_step"] == (2 if is_shortest else 3)


def test_a_strategy_without_its_package_says_what_to_install(run, capsys):
    if find_spec("deepspeed") is not None:
        pytest.skip("deepspeed is installed")
    assert run("strategy=deepspeed", "strategy.accelerator=cpu", "strategy.devices=1") == 1
    assert "deepspeed" in capsys.readouterr().err.lower()
