"""From the shell command to the exit code."""

import errno
import logging
import math
import os
import signal
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from hydra import version
from hydra._internal.utils import _run_hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.syntax import Syntax

from portico.cli import option_parser
from portico.cli.composition import (
    CONFIG_NAME,
    HYDRA_VERSION_BASE,
    complete_all_settings,
    find_known_names,
    instantiate_experiment,
    register_resolvers,
    settings_to_run,
    translate_arguments,
)
from portico.cli.errors import TOP_LEVEL_NAMES, explained, translate_message
from portico.cli.folders import claim, interruption, owning, recorded_config, refuse_running, removed_if_refused
from portico.cli.jobs import (
    FINISHED,
    GRID_SWEEPER,
    PRUNED,
    SweepJob,
    current_job,
    has_several_processes,
    read_goals,
    refuse_drawing_in_several_processes,
)
from portico.cli.sweeps import reported_sweep
from portico.distributed.children import end_with_parent
from portico.distributed.launchers import join_mpi
from portico.errors import (
    InputError,
    ends_with_its_reader,
    exit_with_error,
    explaining_panics,
    is_first_process,
    is_of_full_output,
    nearest_names,
    print_missing_characters_as_codes,
)
from portico.experiments.settings import config_dir, suggestion
from portico.report.terminal import plain_console
from portico.trust.disk import StorageFullError

log = logging.getLogger(__name__)

FULL_ERROR = "HYDRA_FULL_ERROR"
Task = Callable[[DictConfig], object]


@ends_with_its_reader
def main(arguments: Sequence[str] | None = None) -> None:
    """Compose the configuration that ``arguments`` describe, by default ``sys.argv``, and run it or a sweep.

    Exits with one paragraph on stderr: with code 1 if the user's input cannot be used or a file cannot be opened,
    with code 130 after an interrupt. Other errors keep their traceback, and with ``HYDRA_FULL_ERROR=1`` all do.
    """
    end_with_parent()
    print_missing_characters_as_codes()
    register_resolvers()
    try:
        join_mpi()
    except InputError as error:
        _exit(str(error))
    words = translate_arguments(sys.argv[1:] if arguments is None else arguments)
    parser = option_parser()
    options = _parse_options(parser, words)
    if options.shell_completion:
        complete_all_settings()
    if options.cfg and options.package is None:
        print("# @package _global_")  # so that the output is a file of the group experiment
    version.setbase(HYDRA_VERSION_BASE)

    def launch(task: Task) -> None:
        # `hydra.main` reads `sys.argv`, which has to stay as it is: Lightning starts further processes with it.
        _run_hydra(options, parser, task, str(config_dir()), CONFIG_NAME)

    if os.environ.get(FULL_ERROR) == "1":
        launch(run)
        return
    # Hydra prints its errors in its own way and exits, unless told to raise them.
    with env_override({FULL_ERROR: "1"}):
        try:
            with explained(partial(find_known_names, words)), reported_sweep() as sweep:
                launch(_exit_on_errors(run, sweep.failed))
        except _JobFailed:
            pass  # the sweeper has ended the sweep; its report says which jobs failed
        except KeyboardInterrupt:
            _exit(
                f"Interrupted, and all jobs with it. The same command with hydra.sweep.dir='{sweep.folder}' skips the "
                "finished jobs and resumes the others.",
                code=128 + signal.SIGINT,
            )
        except InputError as error:  # of the configuration, a sweeper or a launcher; a run has its own
            _exit(str(error))
        except OSError as error:
            if not _is_of_a_file(error) or is_of_full_output(error):
                raise
            if isinstance(error, StorageFullError):
                _exit(
                    f"'{error.filename}' cannot be written ({error.strerror}). Make room, or set paths.output_dir or "
                    "paths.sweep_dir to a folder of another disk."
                )
            what = f"'{error.filename}'" if error.filename else "A file"
            _exit(
                f"{what} cannot be used ({error.strerror}). A run writes into paths.output_dir, a sweep "
                "into paths.sweep_dir; set it to a folder that can be written to. "
                f"{FULL_ERROR}=1 shows where it failed."
            )
    if sweep.failed:  # a sweeper may have continued after a failure
        numbers = ", ".join(map(str, sorted(sweep.failed)))
        _exit(
            f"These jobs of the sweep failed: {numbers}. Their errors are above or in sweep.json; the others have run."
        )


def _parse_options(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """Return Hydra's options; refuse unknown ones, and those that cannot be honoured."""
    parser.allow_abbrev = False  # which would take `--experiment` for the rerun below
    options, unknown = parser.parse_known_args(words)
    if unknown:
        _exit(_about_option(unknown[0], words))
    pickled = options.experimental_rerun
    if pickled is not None:  # which is found in the folder of a run, and whose overrides are not judged
        _exit(
            f"`--experimental-rerun {pickled}` would unpickle the file, which can run code; repeat the command of the "
            "run, whose overrides are in .hydra/overrides.yaml, with another paths.output_dir=<folder>."
        )
    if options.resolve and not (options.cfg or options.help):
        _exit("`--resolve` says how a configuration is printed; add `--cfg job`, or leave it out.")
    return options


def _about_option(option: str, words: Sequence[str]) -> str:
    """Return why an option that Hydra does not have, such as ``--learning_rate 1e-4``, is refused."""
    name, _, value = option.lstrip("-").partition("=")
    name = name.replace("-", "_")
    following = words[words.index(option) + 1 :][:1]
    value = value or next((word for word in following if not word.startswith("--") and "=" not in word), "<value>")
    known = TOP_LEVEL_NAMES if name in TOP_LEVEL_NAMES else find_known_names(words)
    keys = [key for key in known if f".{key}".endswith(f".{name}")]
    # Hydra itself takes `--multi` for `--multirun`; `--exp` is not meant as the rerun that is refused.
    full = [own for own in option_parser()._option_string_actions if own.startswith(option) and "rerun" not in own]
    meant = f"; write {min(keys, key=len)}={value}." if keys else suggestion(name, known)
    if full and not keys:
        meant = f"; write {' or '.join(full)} in full."
    return f"`{option}` is not an option of `portico train`, where settings are written key=value{meant}"


def run(config: DictConfig) -> float | list[float] | None:
    """Run one composed configuration and return the objective of a sweep; ``None`` for a run of no sweep.

    A job of a sweep that has finished is not run again; one that was interrupted resumes from its last checkpoint.
    """
    folder = Path(HydraConfig.get().runtime.output_dir)
    # In a sweep the folder is one of many; the one in use is recorded.
    config.paths.output_dir = str(folder)
    if is_first_process():
        refuse_running(folder)
    job, hydra_config = current_job(folder), cast(DictConfig, HydraConfig.get())
    if job is None:
        with removed_if_refused(folder):
            _train(settings_to_run(config), folder)
        return None  # only a sweep compares runs by their objective
    with job.recording():
        of_a_sweep = hydra_config.mode is RunMode.MULTIRUN
        if of_a_sweep:
            refuse_drawing_in_several_processes(hydra_config.sweeper["_target_"])
        settings = settings_to_run(config)
        to_resume = job.build_resume_settings(settings)
        if to_resume is not None and job.status in (FINISHED, PRUNED):
            log.info("Job %d is %s already: %s", job.number, job.status, folder)
            return _objective(job.metrics, settings)
        job.begin(settings["objective"])
        if of_a_sweep and has_several_processes(settings):
            job.run_in_own_process()
            return _objective(job.metrics, settings)
        metrics = _train(settings, folder, job, to_resume)
        value = _objective(metrics, settings)
        job.finish(metrics)
        return value
    # `recording` stops at `JobPruned`, with which the search ends a job early.
    return _objective(job.metrics, settings)


def _train(
    settings: dict[str, Any], folder: Path, job: SweepJob | None = None, to_resume: dict[str, Any] | None = None
) -> dict[str, float]:
    """Run the experiment of checked settings, or of ``to_resume``, which resume the job from its folder."""
    # The processes of a run other than the first join the folder that it has claimed.
    if not is_first_process():
        return _run_mode(settings, folder, job, to_resume)
    folder.mkdir(parents=True, exist_ok=True)
    with owning(folder):
        if to_resume is None:
            claim(folder, settings)
        return _run_mode(settings, folder, job, to_resume)


def _run_mode(
    settings: dict[str, Any], folder: Path, job: SweepJob | None, to_resume: dict[str, Any] | None
) -> dict[str, float]:
    yaml = OmegaConf.to_yaml(OmegaConf.create(settings))
    # Jobs differ by the overrides that Hydra logs; each folder has its whole configuration.
    if is_first_process() and settings["print_config"] and (job is None or job.number == 0):
        plain_console().print(Syntax(yaml, "yaml", background_color="default"))
    with recorded_config(folder, yaml) if is_first_process() else nullcontext():
        experiment = instantiate_experiment(to_resume or settings, str(folder))
        for name in read_goals(settings["objective"]) if settings["mode"] == "train" else ():
            experiment.check_objective(name)
        for logger in experiment.logger:
            logger.log_hyperparams(settings)
        if job is not None:
            from portico.cli.studies import JobProgress

            experiment.callbacks = [*experiment.callbacks, JobProgress(job, experiment.intermediate_metrics)]
        with explaining_panics():
            metrics: dict[str, float] = getattr(experiment, settings["mode"])()
    return metrics


def _objective(metrics: Mapping[str, float], settings: Mapping[str, Any]) -> float | list[float] | None:
    return objective_value(metrics, settings["objective"]) if settings["mode"] == "train" and metrics else None


def objective_value(metrics: Mapping[str, float], objective: Mapping[str, Any]) -> float | list[float] | None:
    """Return the metric that a sweep optimises, named under ``metric`` of the objective; None if none is.

    The value is a finite Python float, since other sweepers stop at anything else: NaN and infinity become the worst
    value of the ``mode``, "max" or "min", with a warning. A metric that the run does not have is refused. Several
    objectives are lists of metrics, of modes, and of values.
    """
    from portico.hp_search import worst_instead

    values = []
    for name, mode in read_goals(objective).items():
        if name not in metrics:
            raise InputError(
                f"objective.metric='{name}' is not a metric of this run{nearest_names(name, list(metrics))} "
                f"The run has: {', '.join(metrics)}. Its results are written; set objective.metric to one of these."
            )
        values.append(float(metrics[name]))
        if not math.isfinite(values[-1]):
            values[-1] = worst_instead(name, values[-1], "maximize" if mode == "max" else "minimize")
    if isinstance(objective["metric"], list):
        return values
    return values[0] if values else None


class _JobFailed(Exception):
    """A job of a sweep was refused or failed, and the error was printed; the sweeper decides what follows."""


def _is_of_a_file(error: BaseException) -> bool:
    """Return whether an error says enough without its traceback: a file cannot be used, or the disk is full."""
    return isinstance(error, OSError) and (error.filename is not None or error.errno == errno.ENOSPC)


def _exit_on_errors(task: Task, failed: set[int]) -> Task:
    """Make bad input and an interrupt end the process with a sentence; in a sweep a failure ends only its job.

    The number of a job that failed is added to ``failed``.
    """

    def run_task(config: DictConfig) -> object:
        hydra_config = cast(DictConfig, HydraConfig.get())
        in_sweep = hydra_config.mode is RunMode.MULTIRUN
        with env_override({FULL_ERROR: "0"}):
            try:
                return task(config)
            except KeyboardInterrupt:
                if in_sweep:
                    raise
                print(file=sys.stderr)  # ends the line of the progress bar
                _exit(interruption(Path(hydra_config.runtime.output_dir)), code=128 + signal.SIGINT)
            except Exception as error:
                if not in_sweep and isinstance(error, InputError):
                    _exit(str(error))
                if not in_sweep:
                    raise
                failure = error
        if isinstance(failure, InputError):
            message = translate_message(str(failure))
        elif _is_of_a_file(failure):
            message = str(failure)
        else:
            message = "".join(traceback.format_exception(failure))
        failed.add(int(hydra_config.job.num))
        number, overrides = str(hydra_config.job.num), " ".join(hydra_config.overrides.task)
        print(f"Job {number} ({overrides}) failed: {message}", file=sys.stderr)
        if hydra_config.sweeper["_target_"] == GRID_SWEEPER:
            return None  # it would not start the next batch after an error
        raise _JobFailed(number) from failure

    return run_task


def _exit(message: str, code: int = 1) -> NoReturn:
    exit_with_error(translate_message(message), code)
