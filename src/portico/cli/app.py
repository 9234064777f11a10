"""From the shell command to the exit code."""

import logging
import math
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write
from rich.console import Console
from rich.syntax import Syntax

from portico.cli.compose import (
    CONFIG_NAME,
    HYDRA_VERSION_BASE,
    checked,
    complete_all_settings,
    config_dir,
    experiment_of,
    register_resolvers,
    to_plain,
    with_plus,
)
from portico.cli.errors import CONFIG_ERRORS, explain
from portico.cli.folders import claim, interruption, recorded_config, removed_if_refused
from portico.errors import InputError
from portico.settings import suggestion

log = logging.getLogger(__name__)

FULL_ERROR = "HYDRA_FULL_ERROR"
# The one sweeper that gives the same values in every process; others draw.
_GRID_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_OF_A_SWEEP = re.compile(r"[+~]*hydra[./](mode|sweep|sweeper|launcher)\b")
Task = Callable[[DictConfig], float | None]


def main() -> None:
    """Compose the configuration that the command line describes and run it, once or as a sweep.

    Exits with one paragraph on stderr: with code 1 if the user's input cannot be used or a file cannot be opened,
    with code 130 after an interrupt. Other errors keep their traceback, and with `HYDRA_FULL_ERROR=1` all do.
    """
    register_resolvers()
    sys.argv = [sys.argv[0], *map(with_plus, sys.argv[1:])]
    if any(one.startswith(("-sc", "--shell_completion", "--shell-completion")) for one in sys.argv[1:]):
        complete_all_settings()
    if any(one.partition("=")[0] in ("-c", "--cfg") for one in sys.argv[1:]) and "--package" not in sys.argv:
        print("# @package _global_")  # so that what follows is a file of the group experiment
    launch = hydra.main(str(config_dir()), CONFIG_NAME, HYDRA_VERSION_BASE)
    if os.environ.get(FULL_ERROR) == "1":
        launch(run)()
        return
    # Hydra prints its errors in its own way and exits, unless told to raise them.
    failed_jobs: list[str] = []
    with env_override({FULL_ERROR: "1"}):
        try:
            launch(_exiting(run, failed_jobs))()
        except _JobFailed as first:
            # A launcher that runs jobs in other processes hands on the first failure only.
            failed_jobs = failed_jobs or [str(first)]
        except CONFIG_ERRORS as error:
            _exit(explain(error))
        except OSError as error:
            if error.filename is None:
                raise
            _exit(
                f"'{error.filename}' cannot be used ({error.strerror}). A run writes into paths.output_dir, a sweep "
                "into paths.sweep_dir; set it to a folder that can be written to. "
                f"{FULL_ERROR}=1 shows where it failed."
            )
    if failed_jobs:  # a sweeper may have gone on without asking
        _exit(
            f"These jobs of the sweep failed: {', '.join(failed_jobs)}. Their errors are above; the others have run."
        )


def run(config: DictConfig) -> float | None:
    """Run one composed configuration and return the objective of a sweep; `None` where nothing was trained."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    of_a_sweep = HydraConfig.get().mode is RunMode.MULTIRUN
    with removed_if_refused(folder), _processes_of_one_job(folder) if of_a_sweep else nullcontext():
        # In a sweep the folder is one of many; the one in use is recorded.
        config.paths.output_dir = str(folder)
        settings = checked(to_plain(config))
        # The processes of a run other than the first join the folder that it has claimed.
        is_first = all(int(os.environ.get(rank, "0")) == 0 for rank in ("RANK", "LOCAL_RANK", "NODE_RANK"))
        if is_first:
            claim(folder, settings)
        yaml = OmegaConf.to_yaml(OmegaConf.create(settings))
        if is_first and settings["print_config"]:
            Console().print(Syntax(yaml, "yaml", background_color="default"))
        with recorded_config(folder, yaml) if is_first else nullcontext():
            experiment = experiment_of(settings, str(folder))
            if settings["mode"] == "train" and settings["objective"]["metric"] is not None:
                experiment.check_objective(settings["objective"]["metric"])
            metrics = getattr(experiment, settings["mode"])()
    return objective_value(metrics, settings["objective"]) if settings["mode"] == "train" else None


@contextmanager
def _processes_of_one_job(folder: Path) -> Iterator[None]:
    """Make the processes that a job of a sweep starts run that job, and leave nothing of them to the next one.

    Lightning's "ddp" starts the other ranks with this process's ``sys.argv`` (``_hydra_subprocess_cmd``): with that of
    the sweep each would run its own sweep, and a random sweeper would give each rank different values. It also sets
    ``LOCAL_RANK`` and later reads it as a sign that all processes are running. Processes of torchrun or a cluster stay
    connected from job to job.
    """
    hydra_config = cast(DictConfig, HydraConfig.get())
    if "RANK" in os.environ and hydra_config.sweeper["_target_"] != _GRID_SWEEPER:
        raise InputError(
            f"RANK={os.environ['RANK']} says that a launcher such as torchrun has started this process as one of "
            f"several, and the sweeper {hydra_config.sweeper['_target_']} would draw other values in each. Start the "
            "sweep without the launcher, with strategy.strategy=ddp strategy.devices=<number of processes>."
        )
    from portico.distributed import processes

    arguments, environment = sys.argv, dict(os.environ)
    sys.argv = [arguments[0], *_command_of_job(hydra_config)]
    if {"RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_JOB_ID"}.isdisjoint(environment):
        # On one port, a job's processes could meet in the store of the job before, which torch keeps by its port.
        os.environ.pop("MASTER_PORT", None)
    with read_write(hydra_config):
        hydra_config.run.dir = str(folder)
    try:
        yield
        # The first process holds the store of the group, which the others need to the end.
        processes.wait_for_children()
    finally:
        sys.argv = arguments
        if "LOCAL_RANK" in os.environ.keys() - environment.keys():
            processes.kill_children()
            processes.disconnect()
            os.environ.clear()
            os.environ.update(environment)


def _command_of_job(hydra_config: DictConfig) -> list[str]:
    """Return the arguments of the command line that runs one job of a sweep by itself."""
    folders = {source.provider: source.path for source in hydra_config.runtime.config_sources}
    flags = ["--config-path", folders["main"], "--config-name", hydra_config.job.config_name]
    if "command-line" in folders:
        flags += ["--config-dir", folders["command-line"]]
    own = [override for override in hydra_config.overrides.hydra if not _OF_A_SWEEP.match(override)]
    job = ["hydra.mode=RUN", *(f"hydra.job.{name}='{hydra_config.job[name]}'" for name in ("num", "id"))]
    return [*flags, *hydra_config.overrides.task, *own, *job]


def objective_value(metrics: Mapping[str, float], objective: Mapping[str, Any]) -> float | None:
    """Return the metric that a sweep optimises, named under `metric` of the objective; None if none is.

    It is a finite Python float, since a sweeper stops at anything else: instead of NaN or infinity the worst value of
    the `mode`, "max" or "min", with a warning. A metric that the run does not have is refused.
    """
    name, mode = objective["metric"], objective["mode"]
    if name is None:
        return None
    if name not in metrics:
        raise InputError(
            f"objective.metric='{name}' is not a metric of this run{suggestion(name, list(metrics))} "
            f"The run has: {', '.join(metrics)}. Its results are written; set objective.metric to one of these."
        )
    value = float(metrics[name])
    if math.isfinite(value):
        return value
    worst = -sys.float_info.max if mode == "max" else sys.float_info.max
    log.warning("%s is %s; the sweep is given the worst finite value %g instead.", name, value, worst)
    return worst


class _JobFailed(Exception):
    """A job of a sweep was refused or failed, which has been reported; a sweeper decides what that means."""


def _exiting(task: Task, failed_jobs: list[str]) -> Task:
    """Make bad input and an interrupt end the process with a sentence; what fails in a sweep, only its job."""

    def exiting_task(config: DictConfig) -> float | None:
        in_sweep = HydraConfig.get().mode is RunMode.MULTIRUN
        with env_override({FULL_ERROR: "0"}):
            try:
                return task(config)
            except KeyboardInterrupt:
                print(file=sys.stderr)  # ends the line of the progress bar
                _exit(interruption(Path(HydraConfig.get().runtime.output_dir)), code=128 + signal.SIGINT)
            except Exception as error:
                if not in_sweep and isinstance(error, InputError):
                    _exit(str(error))
                if not in_sweep:
                    raise
                failure = error
        message = failure if isinstance(failure, InputError) else "".join(traceback.format_exception(failure))
        number, overrides = str(HydraConfig.get().job.num), " ".join(HydraConfig.get().overrides.task)
        failed_jobs.append(number)
        print(f"Job {number} ({overrides}) failed: {message}", file=sys.stderr)
        raise _JobFailed(number) from failure

    return exiting_task


def _exit(message: str, code: int = 1) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)
