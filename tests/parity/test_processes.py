"""Several processes train, evaluate, predict, save and resume the same under both libraries."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
from lightning.fabric.plugins.environments.lightning import find_free_network_port

import portico
from forked import run_in_processes
from fresh_process import environment
from models import ToyDataset, ToyStream, tiny_bert
from parity import process_scenarios
from parity.peers import QUIET, assert_same_values, untimed
from parity.process_scenarios import SCENARIOS, accuracy
from portico.checkpoint.manifest import OWN_FILES

SCRIPT = Path(__file__).with_name("process_scenarios.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
# A launch takes as long as many scenarios, so these are the ones that differ most in code.
QUICK = ["basic", "mean_of_means", "stream", "raw_backward", "running_statistics", "saves", "client"]
QUICK += ["rebalanced_accumulation", "bfloat16", "single_rows"]
# Where the number of processes matters: shares that differ, datasets shorter than the world, streams of both kinds.
MORE = ["basic", "accumulation", "client", "uneven", "shorter"]
MORE += ["rebalanced", "rebalanced_accumulation", "own_batches", "split_stream"]
MORE += ["dispatched_stream", "stream_by_all", "shorter_stream_by_all"]
PARTS = ["events", "history", "weights", "rng", "loss", "state", "extra"]


def launch(*command):
    ended = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment(OMP_NUM_THREADS="1"),
        timeout=900,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


def outcome(folder, library, rank):
    return torch.load(folder / f"{library}-{rank}.pt", weights_only=False)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    run_in_processes(2, process_scenarios.main, folder, ",".join(QUICK))
    return folder


@pytest.fixture(scope="module")
def thorough(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thorough")
    launch(*TORCHRUN, 2, SCRIPT, folder, ",".join(name for name in SCENARIOS if name not in QUICK))
    return folder


@pytest.fixture(scope="module", params=[3, 4])
def more(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("more")
    launch(*TORCHRUN, request.param, SCRIPT, folder, ",".join(MORE))
    return folder, request.param


def assert_as_transformers(folder, quick, parts=PARTS):
    """The scenario "basic" of portico in a folder equals that of transformers under torchrun."""
    for rank in range(2):
        mine, other = outcome(folder / "basic", "portico", rank), outcome(quick / "basic", "transformers", rank)
        for part in parts:
            assert_same_values(mine[part], other[part])


def assert_alike(folder, ours="portico", theirs="transformers", parts=PARTS, processes=2):
    for rank in range(processes):
        mine, other = outcome(folder, ours, rank), outcome(folder, theirs, rank)
        for part in parts:
            assert_same_values(mine[part], other[part])


@pytest.mark.parametrize("name", QUICK)
def test_same_training_in_two_processes(name, quick):
    assert_alike(quick / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in QUICK])
def test_same_training_in_two_processes_with_every_setting(name, thorough):
    assert_alike(thorough / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_same_training_in_more_processes(name, more):
    folder, processes = more
    assert_alike(folder / name, processes=processes)


def test_processes_see_different_data_and_share_weights(quick):
    first, second = (outcome(quick / "basic", "portico", rank) for rank in range(2))
    assert_same_values(first["weights"], second["weights"])
    assert first["history"] == second["history"]
    assert len(first["extra"]["predictions"]) == 7


def test_a_sampler_that_knows_its_rank_gives_every_example_to_one_process(quick):
    seen = [
        [
            tuple(row[:2])
            for batch in outcome(quick / "rebalanced_accumulation", "portico", rank)["extra"]["seen"][:4]
            for row in batch
        ]
        for rank in range(2)
    ]
    assert len(seen[0] + seen[1]) == 29


def test_same_checkpoint_files_in_two_processes(quick):
    ours, theirs = (quick / "saves" / f"{library}-run" for library in ("portico", "transformers"))
    for step in range(1, 5):
        mine, other = (folder / f"checkpoint-{step}" for folder in (ours, theirs))
        assert {file.name for file in mine.iterdir()} - set(OWN_FILES) == {file.name for file in other.iterdir()}
        assert {f"rng_state_{rank}.pth" for rank in range(2)} < {file.name for file in mine.iterdir()}
        assert (mine / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        for name in ("optimizer.pt", "scheduler.pt"):
            assert_same_values(torch.load(mine / name), torch.load(other / name))
        for rank in range(2):
            states = [torch.load(run / f"rng_state_{rank}.pth", weights_only=False) for run in (mine, other)]
            assert torch.equal(states[0]["cpu"], states[1]["cpu"])
        assert _state(mine) == _state(other)
    assert not list(ours.glob(".*"))


@pytest.mark.parametrize("path", ["portico-transformers", "transformers-portico"])
def test_either_library_resumes_the_other(path, quick):
    first, second = path.split("-")
    whole = quick / "saves" / "transformers-transformers"
    for rank in range(2):
        resumed = outcome(quick / "saves" / path, second, rank)
        expected = outcome(whole, "transformers", rank)
        for part in ("events", "weights", "rng", "loss"):
            assert_same_values(resumed[part], expected[part])
    assert first != second


def _state(folder):
    state = json.loads((folder / "trainer_state.json").read_text())
    state["log_history"] = [untimed(entry) for entry in state["log_history"]]
    return state


@pytest.mark.slow
def test_same_training_with_launched_processes(quick, tmp_path):
    launch(SCRIPT, tmp_path, "basic", "ddp")
    assert_as_transformers(tmp_path, quick)


@pytest.mark.slow
def test_same_training_with_tasks_of_slurm(quick, tmp_path):
    port = str(find_free_network_port())
    job = {
        "SLURM_JOB_ID": "42",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "1",
    }
    job |= {"SLURM_NODELIST": "127.0.0.1", "SLURM_NODEID": "0", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SCRIPT, tmp_path, "basic", "auto"]
    tasks = [
        subprocess.Popen(command, env=environment(**job, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)))
        for rank in range(2)
    ]
    assert [task.wait(timeout=300) for task in tasks] == [0, 0]
    assert_as_transformers(tmp_path, quick)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_same_training_with_workers_of_ray(quick, tmp_path):
    launch(SCRIPT.with_name("ray_processes.py"), "train", tmp_path)
    for how in ("found", "given"):
        assert_as_transformers(tmp_path / how, quick)
    # It saves, which the other does not.
    assert_as_transformers(tmp_path / "reported", quick, parts=["history", "weights", "rng", "loss", "extra"])
    reports = json.loads((tmp_path / "reports.json").read_text())
    assert reports["lightning"]["metrics"]["step"] == 8
    assert reports["lightning"]["files"] == ["checkpoint.ckpt"]
    assert reports["transformers"]["metrics"]["step"] == 8
    assert "checkpoint/model.safetensors" in reports["transformers"]["files"]


@pytest.fixture
def own_environment():
    """Remove the environment variables that Lightning sets for its processes."""
    before = dict(os.environ)
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(
    "strategy", ["ddp_fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp_spawn", "ddp_notebook"))]
)
def test_same_training_with_spawned_processes(strategy, quick, tmp_path, own_environment):
    trainer = evaluator(tmp_path, strategy=strategy, devices=2)
    output = trainer.train()
    expected = outcome(quick / "basic", "transformers", 0)
    history = [untimed(entry) for entry in trainer.state.log_history]
    assert history == expected["history"][: len(history)]
    assert output.training_loss == expected["loss"]
    assert_same_values(dict(trainer.model.state_dict()), expected["weights"])
    assert_same_values(trainer.predict(ToyDataset(7, seed=4)).predictions, expected["extra"]["predictions"])
    assert untimed(trainer.evaluate()) == expected["extra"]["eval"]
    # Between the calls there are no other processes to wait for.
    trainer.accelerator.wait_for_everyone()
    assert trainer.accelerator.gather(torch.ones(2)).tolist() == [1.0, 1.0]


class Noting(portico.Trainer):
    """Notes its examples in a file for each process."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        with Path(self.args.output_dir, f"seen-{self.args.process_index}").open("a") as file:
            file.writelines(f"{row}\n" for row in inputs["input_ids"].tolist())
        return super().training_step(model, inputs, num_items_in_batch)


class Until(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_training_stop or state.global_step == self.step


@pytest.mark.slow
@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("kind", ["map", "stream", "stream of all"])
def test_run_that_changes_its_number_of_processes(kind, corrected, tmp_path, own_environment):
    """On 2, then 1, then 4 processes, with windows of 2, 3 and 1 batches of 2 examples; 61 and 102 of 200 examples."""
    options = {"max_steps": 14} if kind != "map" else {"num_train_epochs": 1}
    if kind == "stream of all":
        options["accelerator_config"] = {"dispatch_batches": False}
    data, resume, seen = ToyDataset(61) if kind == "map" else ToyStream(200), None, []
    for name, devices, accumulation, until in (("a", 2, 2, 5), ("b", 1, 3, 8), ("c", 4, 1, 0)):
        args = portico.TrainingArguments(
            str(tmp_path / name),
            **QUIET | {"save_strategy": "steps", "save_steps": 1},
            per_device_train_batch_size=2,
            gradient_accumulation_steps=accumulation,
            corrections="resume_by_examples" if corrected else None,
            **{"strategy": "ddp_fork", "devices": devices} if devices > 1 else {},
            **options,
        )
        trainer = Noting(tiny_bert(), args, train_dataset=data, callbacks=[Until(until)])
        trainer.train(resume_from_checkpoint=resume)
        resume = str(tmp_path / name / f"checkpoint-{until}")
        for file in sorted((tmp_path / name).glob("seen-*")):
            seen += file.read_text().splitlines()
    num_examples = 61 if kind == "map" else 102
    repeated = 1 if kind == "map" else 0  # which completes the last batches of the epoch
    assert (len(set(seen)) == num_examples and len(seen) == num_examples + repeated) is corrected


@pytest.mark.parametrize("size", [1, 5, 11])
def test_metrics_do_not_depend_on_number_of_processes(size, tmp_path, own_environment):
    one, two = evaluator(tmp_path / "one"), evaluator(tmp_path / "two", strategy="ddp_fork", devices=2)
    metrics, results = zip(*(evaluated(trainer, size) for trainer in (one, two)), strict=True)
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-6)
    for mine, other in zip(*results, strict=True):
        assert len(mine) == len(other) == size
        assert mine == pytest.approx(other, rel=1e-5)


def evaluated(trainer, size):
    prediction = trainer.predict(ToyDataset(size, seed=3))
    metrics = untimed(prediction.metrics)
    # The mean loss of a batch counts for each of its examples, and two processes have different batches.
    metrics.pop("test_loss")
    return metrics, (prediction.predictions, prediction.label_ids)


def evaluator(folder, **placement):
    args = portico.TrainingArguments(
        str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        learning_rate=1e-2,
        eval_strategy="epoch",
        **QUIET,
        **placement,
    )
    return portico.Trainer(
        tiny_bert(),
        args,
        train_dataset=ToyDataset(),
        eval_dataset=ToyDataset(11, seed=1),
        compute_metrics=accuracy,
    )
