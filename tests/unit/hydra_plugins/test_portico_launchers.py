"""The launchers over joblib, submitit and Ray, with real processes; each is skipped where its engine is missing."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import fake_experiment
from fresh_process import environment
from hostile_folders import RUN, WAYS, detour, elsewhere_of, is_untouched
from hydra_plugins.portico_launchers import CommandLauncher, JoblibLauncher, StartedJob, SubmititLauncher, log_output
from portico.cli.jobs import SweepJob

CHECKOUT = Path(__file__).parents[3]
SEARCHED = ("_target_=fake_experiment.SearchedExperiment", "+experiment=mrc", "hydra.sweep.dir=found")
RATES = "args.learning_rate=1e-3,1e-4"
GRID_OF_OPTUNA = (
    *("hydra/sweeper=portico_optuna", "hydra/sweeper/sampler=grid"),
    *("hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=2"),
)


def needs(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a sweep in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    folders = [str(CHECKOUT / "src"), str(CHECKOUT / "tests")]
    environment["PYTHONPATH"] = os.pathsep.join([*folders, environment.get("PYTHONPATH", "")])

    def start(*overrides):
        command = [sys.executable, str(CHECKOUT / "train.py"), "-m", *SEARCHED, *overrides]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)

    return start


def jobs_in(folder):
    return json.loads((folder / "found/sweep.json").read_text())["jobs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "num_at_once"),
    [
        pytest.param(("launcher=joblib", "hydra.launcher.n_jobs=1"), 1, marks=needs("joblib"), id="joblib-1"),
        pytest.param(("launcher=joblib", "hydra.launcher.n_jobs=2"), 2, marks=needs("joblib"), id="joblib-2"),
        pytest.param(("launcher=submitit_local",), 3, marks=needs("submitit"), id="submitit"),
        pytest.param(("launcher=ray", "hydra.launcher.init.num_cpus=2"), None, marks=needs("ray"), id="ray"),
    ],
)
def test_jobs_run_in_processes_of_their_own(start, tmp_path, launcher, num_at_once):
    seeds = f"args.seed=1,{fake_experiment.BREAKS},{fake_experiment.DIES}"
    sweep = start(*launcher, "args.learning_rate=1e-3", seeds)
    output = sweep.communicate(timeout=500)[0]
    assert sweep.returncode == 1, output
    assert "Sweep: 3 of 3 jobs ended (2 failed), 0 submitted" in output
    assert "These jobs of the sweep failed: 1, 2." in output
    states = [job["status"] for job in jobs_in(tmp_path)]
    assert states == ["finished", "failed", "killed"]
    assert all(job["seconds"] > 0 for job in jobs_in(tmp_path))
    assert jobs_in(tmp_path)[0]["objective"] == {"eval_f1": 80}
    assert "RuntimeError: a defect" in (tmp_path / "found/1/job.log").read_text()
    if not isinstance(num_at_once, int):
        return  # Ray gives each task its share
    threads = json.loads((tmp_path / "found/0/all_results.json").read_text())["num_threads"]
    assert threads == max(1, len(os.sched_getaffinity(0)) // num_at_once)


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(("launcher=joblib", "hydra.launcher.n_jobs=2"), marks=needs("joblib"), id="joblib"),
        pytest.param(("launcher=submitit_local",), marks=needs("submitit"), id="submitit"),
        pytest.param(("launcher=ray", "hydra.launcher.init.num_cpus=2"), marks=needs("ray"), id="ray"),
    ],
)
def test_interrupt_ends_all_jobs(start, tmp_path, launcher):
    sweep = start(*launcher, RATES, f"args.seed={fake_experiment.WAITS}")
    waiting = [tmp_path / f"found/{number}/process.txt" for number in (0, 1)]
    until = time.monotonic() + 240
    while not all(path.exists() and path.read_text() for path in waiting):
        assert sweep.poll() is None, sweep.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.2)
    sweep.send_signal(signal.SIGINT)
    output = sweep.communicate(timeout=120)[0]
    assert sweep.returncode == 130, output
    assert "Interrupted, and all jobs with it." in output
    until = time.monotonic() + 60
    while any(Path("/proc", path.read_text()).exists() for path in waiting):
        assert time.monotonic() < until, "a job runs on"
        time.sleep(0.2)


@pytest.mark.slow
@needs("joblib")
def test_a_job_whose_sweep_was_killed_is_not_started_again_while_it_runs(start, tmp_path):
    """It ends with its sweep; until then its folder has an owner."""
    command = ("launcher=joblib", "hydra.launcher.n_jobs=2", RATES, f"args.seed={fake_experiment.WAITS}")
    sweep = start(*command)
    waiting = [tmp_path / f"found/{number}/process.txt" for number in (0, 1)]
    until = time.monotonic() + 240
    while not all(path.exists() and path.read_text() for path in waiting):
        assert sweep.poll() is None, sweep.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.2)
    jobs = [psutil.Process(int(path.read_text())) for path in waiting]
    for job in jobs:
        job.suspend()  # so that it does not end before the next command
    sweep.kill()
    sweep.communicate(timeout=60)
    again = start(*command)
    output = again.communicate(timeout=120)[0]
    assert again.returncode == 1, output
    assert f"A run is going on in '{tmp_path / 'found/0'}', by process {jobs[0].pid}; wait until it has" in output
    assert all(path.read_text() == str(job.pid) for path, job in zip(waiting, jobs, strict=True))
    for job in jobs:
        job.resume()
    assert not psutil.wait_procs(jobs, timeout=60)[1], "a job runs on without its sweep"


@pytest.mark.slow
@needs("joblib")
@pytest.mark.parametrize("sweeper", [(), GRID_OF_OPTUNA], ids=["grid", "optuna"])
def test_the_command_of_a_killed_sweep_ends_it_with_all_jobs(start, tmp_path, sweeper):
    """What had ended is not run again; what ran ends with its sweep, and is run by the next command."""
    seeds = f"args.seed=1,{fake_experiment.WAITS}"
    command = ("launcher=joblib", "hydra.launcher.n_jobs=2", "args.learning_rate=1e-3", seeds, *sweeper)
    sweep = start(*command)
    until = time.monotonic() + 240
    while not (waiting := [path for path in tmp_path.glob("found/*/process.txt") if path.read_text()]) or not (
        ended := [*tmp_path.glob("found/*/all_results.json")]
    ):
        assert sweep.poll() is None, sweep.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.2)
    job = psutil.Process(int(waiting[0].read_text()))
    sweep.kill()
    sweep.communicate(timeout=60)
    assert not psutil.wait_procs([job], timeout=60)[1], "a job runs on without its sweep"
    (tmp_path / "released").touch()
    again = start(*command)
    output = again.communicate(timeout=240)[0]
    assert again.returncode == 0, output
    assert "Sweep: 2 of 2 jobs ended" in output
    assert [one["status"] for one in jobs_in(tmp_path)] == ["finished", "finished"]
    assert {one["number"] for one in jobs_in(tmp_path)} == {0, 1}
    assert all(one["objective"] for one in jobs_in(tmp_path))
    assert (ended[0].parent / "starts.txt").read_text().split() == ["0"], "a job that had ended ran again"


@pytest.mark.slow
@needs("joblib")
def test_search_keeps_several_trials_running(start, tmp_path):
    search = ("hydra/sweeper=portico_optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2")
    pruner = ("hydra/sweeper/pruner=median", "hydra.sweeper.pruner.n_startup_trials=1")
    # The user's own, which the processes of the jobs learn from their commands.
    pruner += ("hydra.sweeper.pruner._target_=fake_experiment.own_pruner",)
    points = ", ".join(f"{{args.learning_rate: {rate}}}" for rate in ("1e-3", "2e-3", "1e-5", "2e-5"))
    space = ("args.learning_rate=tag(log, interval(1e-5, 1e-1))", f"hydra.sweeper.enqueue=[{points}]")
    sweep = start("launcher=joblib", *search, *pruner, *space)
    output = sweep.communicate(timeout=500)[0]
    assert sweep.returncode == 0, output
    assert "2 submitted" in output
    assert [job["status"] for job in jobs_in(tmp_path)] == ["finished", "finished", "pruned", "pruned"]


@needs("joblib")
@pytest.mark.parametrize(
    ("n_jobs", "num_jobs", "of_a_search", "expected"),
    [(4, 8, None, 2), (4, 2, None, 4), (4, 8, 1, 8), (16, 16, None, 1)],
)
def test_jobs_of_one_machine_share_its_cores(monkeypatch, n_jobs, num_jobs, of_a_search, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    launcher = JoblibLauncher(n_jobs)
    launcher.num_at_once = of_a_search
    assert launcher._num_threads(num_jobs) == expected


class CommandsAlone(CommandLauncher):
    def start_commands(self, jobs):
        pass

    def end(self, jobs):
        pass


@pytest.mark.parametrize("way", WAYS)
def test_the_log_of_a_job_is_new_where_its_name_leads_elsewhere(way, tmp_path, monkeypatch):
    job = SweepJob(folder=tmp_path / RUN, number=0, overrides=[])
    detour(job.folder / "job.log", way)
    composed = SimpleNamespace(hydra=None)
    monkeypatch.setattr("hydra_plugins.portico_launchers.prepare_job", lambda *_: (composed, job))
    monkeypatch.setattr("hydra_plugins.portico_launchers.command_of_job", lambda *_: ["echo", "ours"])
    launcher = CommandsAlone()
    launcher.setup(hydra_context=None, task_function=None, config=None)
    (started,) = launcher.start([[]], 0)
    subprocess.run(started.command, check=True)
    assert (job.folder / "job.log").read_text() == "ours\n"
    assert is_untouched(elsewhere_of(job.folder))


@pytest.mark.parametrize(("of_the_user", "expected"), [(None, "3"), ("7", "7")])
def test_threads_of_a_job_are_those_of_the_user_if_there_are_any(monkeypatch, tmp_path, of_the_user, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if of_the_user is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", of_the_user)
    show = [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
    subprocess.run(log_output(show, tmp_path / "job.log", 3), check=True)
    assert (tmp_path / "job.log").read_text() == f"{expected}\n"


@needs("submitit")
def test_submission_to_slurm(tmp_path, monkeypatch):
    submitted = tmp_path / "submitted.sh"
    for name, script in {"srun": "", "sbatch": f'cp "$1" {submitted}; echo Submitted batch job 12'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    parameters = {"name": "mrc", "timeout_min": 60, "nodes": 3, "tasks_per_node": 2, "gpus_per_node": 2}
    parameters["slurm_partition"] = "fast"
    launcher = SubmititLauncher("slurm", {**parameters, "slurm_array_parallelism": 1}, str(tmp_path / "files"))
    jobs = [StartedJob(SweepJob(folder=tmp_path / str(n), number=n, overrides=[]), ["true", str(n)]) for n in range(2)]
    launcher.start_commands(jobs)
    script = submitted.read_text()
    for line in ("array=0-1%1", "job-name=mrc", "partition=fast", "gpus-per-node=2", "time=60"):
        assert f"#SBATCH --{line}\n" in script
    assert "#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=2\n" in script
    assert [one.handle.job_id for one in jobs] == ["12_0", "12_1"]
    assert jobs[1].handle.submission().args == (["true", "1"],)


# As many tasks as the script asks for, on this machine.
SLURM_COMMANDS = {
    "sbatch": """
        export SLURM_JOB_ID=12 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_NODELIST=127.0.0.1 SLURM_JOB_NODELIST=127.0.0.1
        export SLURM_NTASKS_PER_NODE=$(sed -n 's/#SBATCH --ntasks-per-node=//p' "$1")
        export SLURM_NTASKS=$SLURM_NTASKS_PER_NODE
        (sh "$1"; touch "{folder}/ended") >"{folder}/slurm.log" 2>&1 &
        echo Submitted batch job 12""",
    "srun": """
        while [ "${{1#--}}" != "$1" ]; do
            case "$1" in --output | --error) shift 2;; *) shift;; esac
        done
        task=0
        while [ $task -lt $SLURM_NTASKS ]; do
            SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
            task=$((task + 1))
        done
        wait""",
    "sacct": """
        echo 'JobID|State|NodeList'
        if [ -e "{folder}/ended" ]; then echo '12|COMPLETED|here'; else echo '12|RUNNING|here'; fi""",
}
RECORDER = """
from pathlib import Path

from portico import MRCTrainer


class Recorder(MRCTrainer):
    def training_step(self, *args):
        Path(f"process{self.args.process_index}").write_text(f"{self.args.world_size} {self.args.output_dir}")
        return super().training_step(*args)
"""


@pytest.mark.slow
@needs("submitit")
def test_tasks_of_slurm_train_a_job_together(tmp_path):
    for name, script in SLURM_COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script.format(folder=tmp_path)}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "recorder.py").write_text(RECORDER)
    changes = {"PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]]), "OMP_NUM_THREADS": "1"}
    variables = environment(**changes)
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), variables["PYTHONPATH"]])
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    small = ["args.max_steps=1", "args.use_cpu=true", *(f"model.{name}={size}" for name, size in sizes.items())]
    command = [sys.executable, str(CHECKOUT / "train.py"), "-m", "+experiment=mrc", "debug=default", *small]
    command += ["launcher=submitit_slurm", "hydra.launcher.parameters.tasks_per_node=2", "args.seed=1"]
    command += ["trainer._target_=recorder.Recorder", "paths.sweep_dir=found"]
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr + (tmp_path / "slurm.log").read_text()
    assert [(tmp_path / f"process{rank}").read_text() for rank in (0, 1)] == [f"2 {tmp_path / 'found/0'}"] * 2
    assert json.loads((tmp_path / "found/sweep.json").read_text())["jobs"][0]["status"] == "finished"


def test_missing_engine_names_what_to_install(start, monkeypatch, search, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert search("launcher=ray", "hydra.sweeper.n_trials=1") == 1
    assert "ray is not installed; install it with `pip install 'portico[ray]'`." in capsys.readouterr().err


@pytest.mark.slow
def test_two_commands_at_the_same_time_share_a_study(start, tmp_path):
    search = ("hydra/sweeper=portico_optuna", "hydra.sweeper.n_trials=6")
    workers = [start(*search, "args.learning_rate=tag(log, interval(1e-5, 1e-1))") for _ in range(2)]
    outputs = [one.communicate(timeout=500)[0] for one in workers]
    assert [one.returncode for one in workers] == [0, 0], outputs
    starts = sorted(tmp_path.glob("found/*/starts.txt"))
    assert len(starts) in (6, 7)  # each may have asked for the last one
    assert all(path.read_text().split() == ["0"] for path in starts), "a trial ran twice"


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        pytest.param(
            ("launcher=joblib", "hydra.launcher.n_jobs=0"),
            "`hydra.launcher.n_jobs=0` cannot be used; set it to the number of jobs at a time",
            marks=needs("joblib"),
        ),
        pytest.param(
            ("launcher=joblib", "hydra.launcher.n_jobs=two"),
            "`hydra.launcher.n_jobs=two` cannot be used",
            marks=needs("joblib"),
        ),
        pytest.param(
            ("launcher=submitit_slurm", "hydra.launcher.parameters.slurm_partitoin=fast"),
            "SubmititLauncher cannot start jobs (",
            marks=needs("submitit"),
        ),
    ],
)
def test_wrong_settings_of_a_launcher_are_answered_in_a_sentence(search, capsys, launcher, message):
    sign = [one.replace("hydra.launcher.parameters", "+hydra.launcher.parameters") for one in launcher]
    assert search("hydra.sweeper.n_trials=1", *sign) == 1
    assert message in capsys.readouterr().err
