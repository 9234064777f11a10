"""From the shell command to the exit code."""

import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from omegaconf import DictConfig, OmegaConf

from portico.cli.compose import (
    CONFIG_NAME,
    HYDRA_VERSION_BASE,
    checked,
    config_dir,
    experiment_of,
    register_resolvers,
    to_plain,
)
from portico.cli.errors import CONFIG_ERRORS, explain
from portico.cli.folders import claim, interruption, recorded_config, removed_if_refused
from portico.errors import InputError
from portico.settings import suggestion

log = logging.getLogger(__name__)

FULL_ERROR = "HYDRA_FULL_ERROR"
Task = Callable[[DictConfig], float | None]


def main() -> None:
    """Compose the configuration that the command line describes and run it, once or as a sweep.

    Exits with one paragraph on stderr: with code 1 if the user's input cannot be used or a file cannot be opened,
    with code 130 after an interrupt. Other errors keep their traceback, and with `HYDRA_FULL_ERROR=1` all do.
    """
    register_resolvers()
    launch = hydra.main(str(config_dir()), CONFIG_NAME, HYDRA_VERSION_BASE)
    if os.environ.get(FULL_ERROR) == "1":
        launch(run)()
        return
    # Hydra prints its errors in its own way and exits, unless told to raise them.
    with env_override({FULL_ERROR: "1"}):
        try:
            launch(_exiting(run))()
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


def run(config: DictConfig) -> float | None:
    """Run one composed configuration and return the objective of a sweep; `None` where nothing was trained.

    Raises:
        InputError: If the configuration, or what it points to, cannot be used.
    """
    folder = Path(HydraConfig.get().runtime.output_dir)
    with removed_if_refused(folder):
        # In a sweep the folder is one of many; the one in use is recorded.
        config.paths.output_dir = str(folder)
        settings = checked(to_plain(config))
        # The processes of a run other than the first join the folder that it has claimed.
        is_first = all(int(os.environ.get(rank, "0")) == 0 for rank in ("RANK", "LOCAL_RANK", "NODE_RANK"))
        with _claimed(folder, settings) if is_first else nullcontext():
            experiment = experiment_of(settings, str(folder))
            metrics = getattr(experiment, settings["mode"])()
    return objective_value(metrics, settings["objective"]) if settings["mode"] == "train" else None


def objective_value(metrics: Mapping[str, float], objective: Mapping[str, Any]) -> float | None:
    """Return the metric that a sweep optimises, named under `metric` of the objective; None if none is.

    It is a finite Python float, since a sweeper stops at anything else: instead of NaN or infinity the worst value of
    the `mode`, "max" or "min", with a warning.

    Raises:
        InputError: If the run has no such metric.
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


@contextmanager
def _claimed(folder: Path, settings: dict[str, Any]) -> Iterator[None]:
    claim(folder, settings)
    with recorded_config(folder, OmegaConf.to_yaml(OmegaConf.create(settings))):
        yield


def _exiting(task: Task) -> Task:
    """Make bad input end the process at once: as an exception Hydra would first run the rest of the sweep."""

    def exiting_task(config: DictConfig) -> float | None:
        with env_override({FULL_ERROR: "0"}):
            try:
                return task(config)
            except InputError as error:
                _exit(str(error))
            except KeyboardInterrupt:
                print(file=sys.stderr)  # ends the line of the progress bar
                _exit(interruption(Path(HydraConfig.get().runtime.output_dir)), code=128 + signal.SIGINT)

    return exiting_task


def _exit(message: str, code: int = 1) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)
