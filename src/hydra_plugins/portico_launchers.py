"""Launchers on joblib, submitit and Ray: ``launcher=joblib``, ``submitit_local``, ``submitit_slurm`` or ``ray``.

Each job runs the sweep's command with its own overrides in a separate process: killing one job leaves the others
running, a job may start more processes, and nothing has to be pickled. The engines only start commands. Hydra's
launchers for these engines run the jobs in workers, where a killed job ends the sweep.

Every Hydra application imports this module, so it imports heavy packages inside functions.
"""

import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from typing_extensions import override

from portico.cli.jobs import (
    FAILED,
    KILLED,
    LOG_FILE,
    SweepJob,
    command_of_job,
    end_processes,
    prepare_job,
    start_process,
    threads_of_each,
)
from portico.errors import InputError, MissingPackageError
from portico.trust.disk import remove_detour

_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(eq=False)
class StartedJob:
    """A job given to an engine; ``handle`` is the engine's future, whose ``result()`` is an exit code."""

    job: SweepJob
    command: list[str]
    handle: Any = None

    def result(self) -> JobReturn:
        """Return what Hydra gives to sweepers, once the job has ended."""
        reason = ""
        try:
            # A job of submitit has an exit code for each of its tasks.
            codes = self.handle.results() if hasattr(self.handle, "results") else [self.handle.result()]
            code = next(filter(None, codes), 0)
        except Exception as error:  # each engine has its own
            code, reason = None, f"{type(error).__name__}: {error}"
        self.job.read_outcome(code)
        if reason and self.job.status == KILLED:
            self.job.error = f"{self.job.error} ({reason.splitlines()[0]})"
        self.job.write()
        returned = JobReturn(
            overrides=self.job.overrides, working_dir=str(self.job.folder), status=JobStatus.COMPLETED
        )
        # The failure is recorded and printed; raising it would keep a grid from its next batch.
        values = list(self.job.objective.values())
        if values and self.job.status not in (FAILED, KILLED):
            returned.return_value = values[0] if len(values) == 1 else values
        return returned


class CommandLauncher(Launcher, ABC):
    """Starts each job as a command, with its output in ``job.log`` in the folder of the job."""

    num_expected = 0
    num_at_once: int | None = None
    """Jobs that a search keeps running; None: as many as the engine takes."""

    def num_on_this_machine(self, num_jobs: int) -> int | None:
        """Return how many of ``num_jobs`` run here at the same time; None if the engine divides the cores itself."""
        return None

    @abstractmethod
    def start_commands(self, jobs: Sequence[StartedJob]) -> None:
        """Submit the jobs to the engine, and set the ``handle`` of each."""

    @abstractmethod
    def end(self, jobs: Sequence[StartedJob]) -> None:
        """End jobs that may be running, with all their processes."""

    @override
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config
        self.running: list[StartedJob] = []
        self.num_started = self.num_ended = self.num_failed = 0

    @override
    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        self.num_expected = max(self.num_expected, initial_job_idx + len(job_overrides))
        jobs = waiting = self.start(job_overrides, initial_job_idx)
        while waiting:
            ended = self.wait(waiting)
            waiting = [job for job in waiting if job not in ended]
        return [job.result() for job in jobs]

    def start(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[StartedJob]:
        """Start jobs and return at once."""
        jobs = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            composed, job = prepare_job(self.hydra_context, self.config, overrides, number)
            job.write()
            command, log = command_of_job(composed.hydra, job.folder), job.folder / LOG_FILE
            remove_detour(log)
            jobs.append(StartedJob(job, log_output(command, log, self._num_threads(len(job_overrides)))))
        try:
            self.start_commands(jobs)
        except (TypeError, ValueError, NameError, RuntimeError) as error:  # what submitit and Ray raise for settings
            raise InputError(
                f"{type(self).__name__} cannot start jobs ({' '.join(str(error).split())}); correct hydra.launcher, "
                "or choose another launcher."
            ) from error
        self.running += jobs
        self.num_started += len(jobs)
        self._show_progress()
        return jobs

    def wait(self, jobs: Sequence[StartedJob]) -> list[StartedJob]:
        """Return the jobs that have ended, at least one; an interrupt ends all jobs."""
        try:
            while not (ended := [job for job in jobs if job.handle.done()]):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        except BaseException:
            self.end(self.running)
            for started in self.running:
                started.job.read_outcome(None)
                started.job.write()
            raise
        for job in ended:
            job.result()
            self.running.remove(job)
            self.num_ended += 1
            if job.job.status in (FAILED, KILLED):
                self.num_failed += 1
                print(f"\nJob {job.job.number} failed: {job.job.error}", file=sys.stderr)
        self._show_progress()
        return ended

    def _num_threads(self, num_jobs: int) -> int | None:
        # Threads of concurrent jobs that all use every core wait for each other: with two jobs on two cores a step
        # took ten times as long (measured).
        at_once = self.num_on_this_machine(self.num_at_once or num_jobs)
        return None if at_once is None else threads_of_each(at_once)

    def _show_progress(self) -> None:
        total, num_running = max(self.num_expected, self.num_started), self.num_started - self.num_ended
        failed = f" ({self.num_failed} failed)" if self.num_failed else ""
        line = f"Sweep: {self.num_ended} of {total} jobs ended{failed}, {num_running} submitted"
        is_screen = sys.stderr.isatty()
        end = "" if is_screen and (num_running or self.num_ended < total) else "\n"
        print(f"\r{line}" if is_screen else line, end=end, file=sys.stderr, flush=True)


def log_output(command: Sequence[str], log: Path, num_threads: int | None = None) -> list[str]:
    """Return a command that writes its output to a file and runs in this folder, by default with ``num_threads``."""
    threads = "" if num_threads is None else f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{num_threads}}}; "
    return [
        "/bin/sh",
        "-c",
        f'{threads}log=$0; cd "$1" && shift && exec "$@" >>"$log" 2>&1',
        str(log),
        str(Path.cwd()),
        *command,
    ]


class JoblibLauncher(CommandLauncher):
    """Runs jobs at the same time on this machine: ``n_jobs`` of them as joblib counts, -1 for one on each core."""

    def __init__(self, n_jobs: int = -1) -> None:
        if type(n_jobs) is not int or n_jobs == 0:
            raise InputError(
                f"`hydra.launcher.n_jobs={n_jobs}` cannot be used; set it to the number of jobs at a time, or to -1 "
                "for one on each core."
            )
        self.joblib = _import_package("joblib")
        self.n_jobs = n_jobs
        self.lock = threading.Lock()
        self.is_ending = False

    @override
    def num_on_this_machine(self, num_jobs: int) -> int:
        return min(num_jobs, int(self.joblib.effective_n_jobs(self.n_jobs)))

    @override
    def start_commands(self, jobs: Sequence[StartedJob]) -> None:
        for job in jobs:
            job.handle = Future()
        work = [self.joblib.delayed(self._run)(job) for job in jobs]
        # Threads, since each only waits for the processes of its job.
        workers = self.joblib.Parallel(n_jobs=self.n_jobs, backend="threading")
        threading.Thread(target=workers, args=(work,), daemon=True).start()

    def _run(self, started: StartedJob) -> None:
        with self.lock:
            if self.is_ending:
                return
            started.handle.process = start_process(started.job, started.command)
        started.handle.set_result(started.handle.process.wait())

    @override
    def end(self, jobs: Sequence[StartedJob]) -> None:
        with self.lock:
            self.is_ending = True
        end_processes([job.handle.process for job in jobs if hasattr(job.handle, "process")])


@dataclass(eq=False)
class SubmititLauncher(CommandLauncher):
    """Submits jobs with submitit, a batch of them as one array of SLURM.

    Args:
        cluster: "slurm", or "local" for processes of this machine, which all start at once.
        parameters: Arguments of ``submitit.AutoExecutor.update_parameters``, such as ``timeout_min``,
            ``gpus_per_node``, ``slurm_partition`` and ``slurm_array_parallelism``. With ``tasks_per_node`` above 1,
            as many processes train one job together.
        folder: Folder of submitit's own files.
    """

    cluster: str
    parameters: Mapping[str, Any]
    folder: str

    def __post_init__(self) -> None:
        self.submitit = _import_package("submitit")

    @override
    def num_on_this_machine(self, num_jobs: int) -> int | None:
        return num_jobs if self.cluster == "local" else None

    @override
    def start_commands(self, jobs: Sequence[StartedJob]) -> None:
        executor = self.submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        executor.update_parameters(**_plain(self.parameters))
        if len(jobs) == 1:
            jobs[0].handle = executor.submit(subprocess.call, jobs[0].command)
            return
        for job, handle in zip(jobs, executor.map_array(subprocess.call, [job.command for job in jobs]), strict=True):
            job.handle = handle

    @override
    def end(self, jobs: Sequence[StartedJob]) -> None:
        for job in jobs:
            job.handle.cancel()


@dataclass(eq=False)
class RayLauncher(CommandLauncher):
    """Runs jobs as tasks of Ray, which starts as many as fit on its machines.

    Args:
        init: Arguments of ``ray.init``: ``address`` of a cluster, or ``num_cpus`` of a Ray on this machine.
        remote: Arguments of ``ray.remote``: what each job needs, such as ``num_cpus`` and ``num_gpus``.
    """

    init: Mapping[str, Any]
    remote: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.ray = _import_package("ray")

    @override
    def start_commands(self, jobs: Sequence[StartedJob]) -> None:
        if not self.ray.is_initialized():
            self.ray.init(**_plain(self.init))
        task = self.ray.remote(**_plain(self.remote), max_retries=0)(subprocess.call)
        for job in jobs:
            reference = task.remote(job.command)
            job.handle = reference.future()
            job.handle.reference = reference

    @override
    def end(self, jobs: Sequence[StartedJob]) -> None:
        for job in jobs:
            self.ray.cancel(job.handle.reference)
        self.ray.shutdown()


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True))


def _import_package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        extra = "ray" if name == "ray" else "launchers"
        raise MissingPackageError(
            f"{name} is not installed; install it with `pip install 'portico[{extra}]'`."
        ) from error
