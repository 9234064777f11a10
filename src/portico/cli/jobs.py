"""The jobs of a sweep: the record in each folder, what is left to do, and running a job in its own process."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

from hydra.core.hydra_config import HydraConfig
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from portico.cli.folders import read_run_settings, refuse_running
from portico.data.defects import shorten
from portico.distributed.children import build_child_environment
from portico.errors import InputError, is_first_process, is_started_by_srun, printable
from portico.trust.disk import read_text, write_text
from portico.trust.names import TARGET

JOB_FILE = "job.json"
LOG_FILE = "job.log"
# Hydra's configuration of a sweep, in its folder, which every sweeper writes before its first job.
SWEEP_CONFIG = "multirun.yaml"
# "running" stays in the file of a job whose process was killed.
RUNNING, FINISHED, PRUNED, FAILED, KILLED = "running", "finished", "pruned", "failed", "killed"

# The one sweeper that gives the same values in every process; others draw.
GRID_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
# The one sweeper of which several processes may work in one folder: they share a study.
OPTUNA_SWEEPER = "hydra_plugins.portico_optuna.OptunaSweeper"
_OF_A_SWEEP = re.compile(r"[+~]*hydra[./](mode|sweep|sweeper|launcher)\b")
# Settings that may differ in a resumed job.
_PLACES = ("paths", "overwrite", "logger")
_SECONDS_TO_END = 10
# Tell the process of a job what its sweep names; a forged `job.json` may name anything.
_PRUNER_VARIABLE, _STORAGE_VARIABLE = "PORTICO_PRUNER", "PORTICO_STORAGE"
_MOST = 1 << 63


class JobPruned(Exception):
    """The search ends this job early: others were better after the same number of evaluations."""


class JobEndedError(InputError):
    """The process of a job has failed and reported why."""


class ReportedTrial(TypedDict):
    """The trial of an Optuna study that a job reports its evaluations to."""

    storage: str
    study: str
    id: int
    pruner: dict[str, Any] | None
    """Configuration of the pruner; ``None``: the search does not prune."""


@dataclass(kw_only=True)
class SweepJob:
    """One job of a sweep, kept as ``job.json`` in its folder and written by the first process of the job."""

    folder: Path
    number: int
    overrides: list[str]
    status: str = RUNNING
    goals: dict[str, str] = field(default_factory=dict)
    """"max" or "min" for each objective."""
    objective: dict[str, float | None] = field(default_factory=dict)
    """Value of each objective; None where it is not finite."""
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations: list[list[float]] = field(default_factory=list)
    """Optimizer step and first objective of each evaluation during training."""
    started: float = 0.0
    """Unix time of the last start."""
    seconds: float = 0.0
    """Wall time of all starts; of one that was killed, until its last evaluation or checkpoint."""
    error: str | None = None
    is_feasible: bool = True
    """Whether the constraints of the search hold."""
    trial: ReportedTrial | None = None
    """Where to report evaluations."""

    @classmethod
    def read(cls, folder: Path) -> "SweepJob | None":
        """Return the job of a folder, None if it has none; refuse a file that cannot be read."""
        path = folder / JOB_FILE
        if not path.is_file():
            return None
        try:
            job = cls(**json.loads(read_text(path)), folder=folder)
            job._check()
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path}: not the record of a job ({printable(str(error))}); remove it to start the job over."
            ) from error
        return job

    @classmethod
    def find_or_create(cls, folder: Path, number: int, overrides: list[str]) -> "SweepJob":
        """Return the job of a folder if it has these overrides, else a new one."""
        known = cls.read(folder)
        if known is not None and known.overrides == overrides:
            return known
        return cls(folder=folder, number=number, overrides=overrides)

    def _check(self) -> None:
        """Raise ``ValueError`` if a field has another type, as in a file that was edited or is not ours."""
        kinds = get_type_hints(type(self))
        wrong = [name for name, kind in kinds.items() if not _fits(getattr(self, name), kind)]
        if not wrong:
            holds = {
                "number": self.number >= 0,
                "goals": {*self.goals.values()} <= {"max", "min"},
                "evaluations": all(len(evaluation) == 2 for evaluation in self.evaluations),
                "started": math.isfinite(self.started),
                "seconds": math.isfinite(self.seconds),
            }
            wrong = [name for name, is_so in holds.items() if not is_so]
        if wrong:
            raise ValueError(f"`{wrong[0]}` is {shorten(getattr(self, wrong[0]))}")

    def write(self) -> None:
        if not is_first_process():
            return
        content = {name: value for name, value in asdict(self).items() if name != "folder"}
        # Other processes read the file while it changes.
        write_text(self.folder / JOB_FILE, json.dumps(content, indent=1, default=str))

    def build_resume_settings(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the settings that resume this job from its folder; None if the folder has nothing of this job."""
        if settings["overwrite"]:
            return None
        try:
            is_same = _identity(read_run_settings(self.folder)) == _identity(settings)
        except InputError:  # there is none, or it is another program's
            return None
        if not is_same:
            return None
        has_checkpoint = any(next(self.folder.glob(pattern), None) for pattern in ("checkpoint-*", "*.th"))
        args = {"resume_from_checkpoint": True} if has_checkpoint else {}
        return {**settings, "args": {**settings["args"], **args}}

    def begin(self, objective: Mapping[str, Any]) -> None:
        self.goals = read_goals(objective)
        self.status = RUNNING
        self.error = None
        self.objective = {}
        self.started = time.time()
        self.write()

    def finish(self, metrics: Mapping[str, float]) -> None:
        self.status = FINISHED
        self.metrics = {name: float(value) for name, value in metrics.items()}
        values = {name: self.metrics[name] for name in self.goals}
        self.objective = {name: value if math.isfinite(value) else None for name, value in values.items()}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record how the job ends."""
        before, begun = self.seconds, time.time()
        try:
            yield
        except JobPruned:
            self.status = PRUNED
            if self.evaluations and len(self.goals) == 1:
                self.objective = {next(iter(self.goals)): self.evaluations[-1][1]}
        except JobEndedError:
            raise
        except Exception as error:
            self.status = FAILED
            self.error = f"{type(error).__name__}: {error}"
            self.started = self.started or begun
            raise
        except BaseException:  # an interrupt, or an exit
            if self.status == RUNNING:
                self.stop("it was interrupted")
            raise
        finally:
            if self.status not in (FINISHED, PRUNED) or self.started >= begun:  # else it had ended before
                self.seconds = before + time.time() - begun
                self.write()

    def run_in_own_process(self) -> None:
        """Run the job in processes that can end without ending this one, then read its record."""
        process = start_process(self)
        try:
            process.wait()
        except BaseException:
            end_processes([process])
            raise
        self.read_outcome(process.returncode)
        if self.status in (FAILED, KILLED):
            raise JobEndedError(str(self.error))

    def stop(self, ending: str) -> None:
        """Note that the job neither finished nor failed; ``ending`` says what ended it."""
        self.status = KILLED
        self.error = f"{ending}; the same command over the same folder resumes it"

    def read_outcome(self, code: int | None) -> None:
        """Read what the process of the job recorded; ``code`` is its exit code, None if unknown."""
        recorded, before = SweepJob.read(self.folder), self.seconds
        if recorded is not None:
            self.__dict__.update(recorded.__dict__)
        if self.status == RUNNING:
            ending = "its process was killed" if code is None or code < 0 else f"its process ended with code {code}"
            self.stop(ending)
            if code is not None and self.started:
                self.seconds = before + time.time() - self.started


def _fits(value: object, kind: Any) -> bool:
    """Return whether a JSON value has the type that an annotation states."""
    parts = get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_fits(value, part) for part in parts)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(_fits(item, parts[1]) for item in value.values())
    if is_typeddict(kind):
        fields = get_type_hints(kind).items()
        return isinstance(value, dict) and all(name in value and _fits(value[name], field) for name, field in fields)
    if kind in (int, float) and type(value) is int:
        return abs(value) < _MOST  # larger integers cannot be drawn
    return kind is Any or type(value) is kind or (kind is Path and isinstance(value, Path))


def _identity(settings: Mapping[str, Any]) -> object:
    """Return what makes two runs the same one, as JSON values."""
    same = {name: value for name, value in settings.items() if name not in _PLACES}
    same["args"] = {**settings["args"], "resume_from_checkpoint": None}
    return json.loads(json.dumps(same, default=str))


def read_goals(objective: Mapping[str, Any]) -> dict[str, str]:
    """Return the direction, "max" or "min", of each objective of a configuration; one mode holds for all."""
    metric, mode = objective["metric"], objective["mode"]
    names, modes = (value if isinstance(value, list) else [value] for value in (metric, mode))
    if len(modes) == 1:
        modes = modes * len(names)
    if not all(isinstance(name, str | None) for name in names):
        raise InputError(f"`objective.metric={metric}` is not a name; set it to a metric of the run, or to several.")
    if len(modes) != len(names) or not all(mode in ("max", "min") for mode in modes):
        each = "" if isinstance(metric, str | None) else f", or to a list with one for each of {', '.join(names)}"
        raise InputError(f"objective.mode={mode} is unknown; set it to max or min{each}.")
    return {name: mode for name, mode in zip(names, modes, strict=True) if name is not None}


def refuse_drawing_in_several_processes(sweeper: str) -> None:
    """Refuse a sweeper that would draw different values in each process that a launcher has started."""
    if sweeper == GRID_SWEEPER or not ("RANK" in os.environ or is_started_by_srun()):
        return
    sign, launcher = ("RANK", "torchrun") if "RANK" in os.environ else ("SLURM_PROCID", "srun")
    raise InputError(
        f"{sign}={os.environ.get(sign)} says that a launcher such as {launcher} has started this process as one of "
        f"several, and the sweeper {sweeper} would draw other values in each. Start the sweep without the launcher, "
        "with strategy.strategy=ddp strategy.devices=<number of processes>."
    )


def current_job(folder: Path) -> SweepJob | None:
    """Return the job of a sweep that this process runs in a folder; None outside of a sweep."""
    known = SweepJob.read(folder)
    config = cast(DictConfig, HydraConfig.get())
    if config.mode is not RunMode.MULTIRUN:
        return known
    number, overrides = int(config.job.num), list(config.overrides.task)
    if known is None or known.overrides != overrides:
        trial = known.trial if known is not None else None
        return SweepJob(folder=folder, number=number, overrides=overrides, trial=trial)
    return known


def prepare_job(
    hydra_context: HydraContext, config: DictConfig, overrides: Sequence[str], number: int
) -> tuple[DictConfig, SweepJob]:
    """Return the configuration of a job as a launcher composes it, and the record of the job, new or earlier."""
    composed = hydra_context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = number
    folder = Path(composed.hydra.sweep.dir, str(composed.hydra.sweep.subdir)).absolute()
    refuse_running(folder)
    return composed, SweepJob.find_or_create(folder, number, list(composed.hydra.overrides.task))


# ---- Own processes ----


def has_several_processes(settings: Mapping[str, Any]) -> bool:
    """Return whether a run starts further processes itself; processes of torchrun or a cluster are running already."""
    strategy = settings.get("strategy") or {}
    devices, nodes = strategy.get("devices"), strategy.get("num_nodes")
    is_single = devices in (None, 1, "1") or (isinstance(devices, list) and len(devices) == 1)
    return not (is_single and nodes in (None, 1)) and {"RANK", "LOCAL_RANK", "NODE_RANK"}.isdisjoint(os.environ)


def drop_sweep_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of Hydra's own settings that concern one run."""
    return [override for override in overrides if not _OF_A_SWEEP.match(override)]


def command_of_job(hydra_config: DictConfig, folder: Path) -> list[str]:
    """Return the command that runs one job of a sweep by itself.

    Lightning's "ddp" starts the other ranks with the arguments of the first process: with the arguments of the sweep
    each rank would run a sweep, and a sweeper that draws would give each rank different values.
    """
    import __main__

    script = ["-m", spec.name] if (spec := getattr(__main__, "__spec__", None)) else [str(Path(sys.argv[0]).resolve())]
    command = ["train"] if sys.argv[1:2] == ["train"] else []  # of `portico train`; `python train.py` has none
    folders = {source.provider: source.path for source in hydra_config.runtime.config_sources}
    flags = ["--config-path", folders["main"], "--config-name", hydra_config.job.config_name]
    if "command-line" in folders:
        flags += ["--config-dir", folders["command-line"]]
    own = drop_sweep_overrides(hydra_config.overrides.hydra)
    job = ["hydra.mode=RUN", *(f"hydra.job.{name}='{hydra_config.job[name]}'" for name in ("num", "id"))]
    chosen = {_PRUNER_VARIABLE: get_pruner_path(hydra_config), _STORAGE_VARIABLE: get_storage_digest(hydra_config)}
    job += [f"+hydra.job.env_set.{variable}='{value}'" for variable, value in chosen.items() if value]
    place = str(folder).replace("'", "\\'")
    return [
        sys.executable,
        *script,
        *command,
        *flags,
        *hydra_config.overrides.task,
        *own,
        *job,
        f"hydra.run.dir='{place}'",
    ]


def get_pruner_path(hydra_config: DictConfig) -> str | None:
    """Return the dotted path of the pruner that the user's command names."""
    name = OmegaConf.select(hydra_config, f"sweeper.pruner.{TARGET}") or os.environ.get(_PRUNER_VARIABLE)
    return None if name is None else str(name)


def get_storage_digest(hydra_config: DictConfig) -> str | None:
    """Return the :func:`digest_of_address` of the storage that the user's command names."""
    address = OmegaConf.select(hydra_config, "sweeper.storage")
    return digest_of_address(str(address)) if address else os.environ.get(_STORAGE_VARIABLE)


def digest_of_address(address: str) -> str:
    """Return what identifies an address that may hold a password; commands of jobs are shown to all users."""
    return sha256(address.encode(errors="surrogatepass")).hexdigest()


def environment_of_job() -> dict[str, str]:
    # With the same port, processes of one job could join the store of another job.
    return {name: value for name, value in os.environ.items() if name not in ("MASTER_PORT", "HYDRA_FULL_ERROR")}


def start_process(job: SweepJob, command: Sequence[str] | None = None) -> subprocess.Popen[bytes]:
    """Start the job in a new session, so that all its processes can be ended; by default with the current command."""
    command = command or command_of_job(cast(DictConfig, HydraConfig.get()), job.folder)
    return subprocess.Popen(command, env=build_child_environment(environment_of_job()), start_new_session=True)


def end_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt jobs and all their processes, as Ctrl-C does, and kill those that do not end."""
    for sign, seconds in ((signal.SIGINT, _SECONDS_TO_END), (signal.SIGKILL, 1)):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
        until = time.monotonic() + seconds
        while any(process.poll() is None for process in processes) and time.monotonic() < until:
            time.sleep(0.05)


def threads_of_each(num_jobs: int) -> int:
    """Return the threads of each job when ``num_jobs`` share the cores that this process may use."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, num_cores // num_jobs)
