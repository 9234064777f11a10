"""A sweep of runs in two processes each, under a sweeper that draws its values anew in every process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.lightning import find_free_network_port

from fresh_process import environment, python

CHECKOUT = Path(__file__).parents[2]
SHAPE = ("hidden_size=32", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=32")

SWEEPER = """
import os
import random

from hydra.plugins.sweeper import Sweeper
from hydra.core.plugins import Plugins


class DrawingSweeper(Sweeper):
    def __init__(self, max_batch_size, params):
        pass

    def setup(self, *, hydra_context, task_function, config):
        arguments = {"hydra_context": hydra_context, "task_function": task_function, "config": config}
        self.launcher = Plugins.instance().instantiate_launcher(**arguments)

    def sweep(self, arguments):
        draw = random.Random(os.getpid()).random
        for number in range(2):
            self.launcher.launch([[*arguments, f"args.learning_rate={draw()}"]], initial_job_idx=number)
"""

TRAINER = """
import json
import os
import signal
from pathlib import Path

from portico import MRCTrainer


class Recorded(MRCTrainer):
    def training_step(self, *args):
        death = Path("death")
        if self.args.process_index == 1 and self.args.seed == 7 and death.exists():
            death.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        rank = Path(f"process{self.args.process_index}.jsonl").open("a")
        print(json.dumps([self.args.output_dir, self.args.learning_rate, self.args.world_size]), file=rank)
        return super().training_step(*args)
"""


@pytest.fixture
def sweep(tmp_path):
    """Return a function that starts the sweep, optionally as one process of a launcher.

    With ``start=None`` it runs in a fork, which imports less.
    """
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "drawing.py").write_text(SWEEPER, encoding="utf-8")
    (tmp_path / "recorded.py").write_text(TRAINER, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    drawing = ["hydra.sweeper._target_=hydra_plugins.drawing.DrawingSweeper"]
    optuna = ["hydra/sweeper=portico_optuna", "hydra.sweeper.n_trials=2", "args.learning_rate=interval(0.1, 0.9)"]
    small = [*(f"model.{size}" for size in SHAPE), "args.max_steps=1", "trainer._target_=recorded.Recorded"]
    command = [str(CHECKOUT / "train.py"), "-m", "+experiment=mrc", "debug=default"]

    def run(*grid, sweeper="drawing", is_spread=False, strategy="ddp", start=(sys.executable,), **launcher):
        chosen = grid or {"drawing": drawing, "optuna": optuna}[sweeper]
        spread = [f"strategy={strategy}", "strategy.accelerator=cpu"]
        chosen = [*chosen, *small, *(spread if is_spread or not grid else [])]
        words = [*command, *chosen, "paths.sweep_dir=drawn"]
        if start is None:
            return python(*words, folder=tmp_path, PYTHONPATH=path, **launcher)
        return subprocess.run(
            [*start, *words],
            env=environment(OMP_NUM_THREADS="1", PYTHONPATH=path, **launcher),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )

    return run


@pytest.mark.parametrize(
    ("sweeper", "strategy"),
    [
        pytest.param("drawing", "ddp", marks=pytest.mark.slow),
        pytest.param("optuna", "fsdp", marks=pytest.mark.slow),
        pytest.param("optuna", "ddp", marks=pytest.mark.slow),
    ],
)
def test_ranks_of_a_job_train_the_values_drawn_for_it(sweep, tmp_path, sweeper, strategy):
    # A port of the environment holds for one group of processes; the second job must not meet the first one's.
    ended = sweep(sweeper=sweeper, strategy=strategy, MASTER_PORT=str(find_free_network_port()))
    assert ended.returncode == 0, ended.stderr
    steps = [
        [json.loads(line) for line in (tmp_path / f"process{rank}.jsonl").read_text().splitlines()] for rank in (0, 1)
    ]
    assert steps[0] == steps[1]
    folders, rates, sizes = zip(*steps[0], strict=True)
    assert [Path(folder).relative_to(tmp_path) for folder in folders] == [Path("drawn/0"), Path("drawn/1")]
    assert rates[0] != rates[1]
    assert set(sizes) == {2}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"drawn", "hydra_plugins"} | {
        name for name in ("__pycache__",) if (tmp_path / name).exists()
    }


@pytest.mark.slow
def test_death_of_a_process_fails_only_its_job(sweep, tmp_path):
    (tmp_path / "death").touch()
    ended = sweep("args.seed=7,8", is_spread=True)
    assert ended.returncode == 1
    assert "error: These jobs of the sweep failed: 0." in ended.stderr
    assert not (tmp_path / "drawn/0/all_results.json").exists()
    assert (tmp_path / "drawn/1/all_results.json").exists()
    assert sweep("args.seed=7,8", is_spread=True).returncode == 0
    assert (tmp_path / "drawn/0/all_results.json").exists()
    trained = [json.loads(line)[0] for line in (tmp_path / "process1.jsonl").read_text().splitlines()]
    assert [Path(folder).name for folder in trained] == ["1", "0"], "the finished job ran again"


@pytest.mark.parametrize(
    ("launcher", "sign"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "RANK=0 says that a launcher such as torchrun"),
        (
            {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"},
            "SLURM_PROCID=0 says that a launcher such as srun",
        ),
    ],
)
def test_a_launcher_around_a_drawing_sweeper_is_refused(sweep, tmp_path, launcher, sign):
    ended = sweep(start=None, **launcher)
    assert ended.returncode == 1
    assert f"failed: {sign}" in ended.stderr
    assert not (tmp_path / "process0.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["args.use_cpu=true", "args.fsdp=true args.use_cpu=true"])
def test_processes_of_a_launcher_run_each_job_of_a_grid(sweep, tmp_path, strategy):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    ended = sweep("args.learning_rate=0.1,0.2", *strategy.split(), start=torchrun)
    assert ended.returncode == 0, ended.stderr
    steps = [
        [json.loads(line)[1:] for line in (tmp_path / f"process{rank}.jsonl").read_text().splitlines()]
        for rank in (0, 1)
    ]
    assert steps == [[[0.1, 2], [0.2, 2]]] * 2
