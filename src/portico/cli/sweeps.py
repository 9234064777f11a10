"""The report of a sweep from the records of its jobs: a table, ``sweep.json`` and ``sweep.html``.

:func:`reported_sweep` writes it when the sweep ends; :mod:`portico.report.sweep_page` makes the page.
"""

import errno
import json
import os
import shlex
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.table import Table
from typing_extensions import override

from portico.cli.jobs import (
    FAILED,
    FINISHED,
    GRID_SWEEPER,
    JOB_FILE,
    KILLED,
    OPTUNA_SWEEPER,
    SWEEP_CONFIG,
    SweepJob,
    drop_sweep_overrides,
)
from portico.errors import InputError, exit_with_error, is_first_process
from portico.report.page import REPORT_PAGE
from portico.report.sweep_page import format_value, sweep_page, sweep_results
from portico.report.terminal import plain_console
from portico.trust import disk
from portico.trust.disk import read_text, remove_detour, remove_stale_staging, write_text
from portico.trust.names import TARGET

# What a run's report says that none of its other files does.
RECORD_FILE = "report.json"
SWEEP_FILE, SWEEP_PAGE = "sweep.json", "sweep.html"
# Below, an importance would be noise.
_FEWEST_JOBS = 4


def report_sweep(folder: Path) -> dict[str, Any]:
    """Write the report of the sweep in a folder, print its table, and return what is in ``sweep.json``."""
    summary = summarize_sweep(folder, read_jobs(folder))
    remove_stale_staging(folder)
    write_text(folder / SWEEP_FILE, json.dumps(summary, indent=1))
    write_text(folder / SWEEP_PAGE, sweep_page(summary))
    console = plain_console()
    console.print(_table(summary))
    # Long paths must stay whole, so that they can be clicked and copied.
    for line in (sweep_results(summary), f"Report of the sweep: {folder / SWEEP_PAGE}"):
        console.print(line, soft_wrap=True, highlight=False)
    return summary


def read_jobs(folder: Path) -> list[SweepJob]:
    """Return the jobs of a sweep by number; raise an ``InputError`` if the folder has none."""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    found = [SweepJob.read(path.parent) for path in folder.rglob(JOB_FILE)]
    jobs = sorted((job for job in found if job is not None), key=lambda job: (job.number, str(job.folder)))
    if not jobs:
        raise InputError(f"{folder}: not the folder of a sweep; name one whose subfolders have a {JOB_FILE}.")
    return jobs


def summarize_sweep(folder: Path, jobs: Sequence[SweepJob]) -> dict[str, Any]:
    """Return how a sweep searched, what its jobs have in common and what each reached, as JSON values."""
    search = read_search(folder)
    searched = [dimension["name"] for dimension in search["space"]]
    values, fixed = split_overrides(jobs, searched)
    goals = next((job.goals for job in reversed(jobs) if job.goals), {})
    rows = []
    for job, chosen in zip(jobs, values, strict=True):
        row = {name: getattr(job, name) for name in ("number", "status", "seconds", "error", "is_feasible")}
        place = job.folder.absolute().relative_to(folder.absolute()).as_posix()
        report = f"{place}/{REPORT_PAGE}" if (job.folder / REPORT_PAGE).is_file() else None
        values_of_goals = {name: job.objective.get(name) for name in goals}
        rows.append(
            {**row, "folder": place, "report": report, "values": chosen, "objective": values_of_goals}
            | {"evaluations": job.evaluations, "command": shlex.join([*search["command"], *job.overrides])}
        )
    return {
        "name": folder.absolute().name,
        "goals": goals,
        "parameters": list(dict.fromkeys([*searched, *(name for chosen in values for name in chosen)])),
        "space": search["space"],
        "method": search["method"],
        "fixed": fixed,
        "best": (best := best_jobs(rows, goals)),
        "baselines": _baselines([job.folder for job in jobs if job.number in best], goals),
        "importances": {name: importances(rows, name) for name in goals},
        "without_importances": {name: reason for name in goals if (reason := explain_missing_importances(rows, name))},
        "jobs": rows,
    }


def _baselines(folders: Sequence[Path], goals: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return the scores of trivial answers by objective, as the report of the first run that has them states them."""
    names = {goal: goal.removeprefix("eval_") for goal, mode in goals.items() if mode == "max"}
    for folder in folders:
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            trivial = json.loads(read_text(folder / RECORD_FILE))["baselines"].items()
            return {
                goal: {way: float(scores[name]) for way, scores in trivial if name in scores}
                for goal, name in names.items()
            }
    return {}


def split_overrides(jobs: Sequence[SweepJob], searched: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return each job's values by key, of the searched keys and of others that vary, and what all jobs share."""
    chosen = [{_key(override): override for override in job.overrides} for job in jobs]
    names = dict.fromkeys(name for by_key in chosen for name in by_key)
    shown = [name for name in names if name in searched or len({by_key.get(name) for by_key in chosen}) > 1]
    values = [{name: _plain(by_key[name].partition("=")[2]) for name in shown if name in by_key} for by_key in chosen]
    return values, [chosen[0][name] for name in names if name not in shown]


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _plain(text: str) -> Any:
    """Return a number as such, anything else as it was written; YAML reads 1e-5 as a string."""
    try:
        return yaml.safe_load(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def best_jobs(rows: Sequence[Mapping[str, Any]], goals: Mapping[str, str]) -> list[int]:
    """Return the number of the best feasible job; of several objectives, of all that no other job dominates."""
    measured = {
        row["number"]: [
            row["objective"][name] if goal == "max" else -row["objective"][name] for name, goal in goals.items()
        ]
        for row in rows
        if goals and _is_measured(row) and row["is_feasible"]
    }
    if len(goals) == 1:
        return [max(measured, key=lambda number: measured[number])] if measured else []

    def dominates(first: list[float], other: list[float]) -> bool:
        return first != other and all(a >= b for a, b in zip(first, other, strict=True))

    return [
        number
        for number, values in measured.items()
        if not any(dominates(other, values) for other in measured.values())
    ]


def _is_measured(row: Mapping[str, Any]) -> bool:
    return row["status"] == FINISHED and all(value is not None for value in row["objective"].values())


def importances(rows: Sequence[Mapping[str, Any]], goal: str) -> dict[str, float]:
    """Return how much of an objective's variation each parameter explains, summing to 1; empty if that is unknown.

    By fANOVA, or by PED-ANOVA where scikit-learn is not installed; empty without Optuna and for fewer than 4 jobs.
    """
    if explain_missing_importances(rows, goal):
        return {}
    rows, names = _comparable(rows)
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances

    space: dict[str, Any] = {}
    for name in names:
        found = [row["values"][name] for row in rows]
        if all(isinstance(value, int | float) for value in found):
            is_log = min(found) > 0 and max(found) > 10 * min(found)
            space[name] = optuna.distributions.FloatDistribution(min(found), max(found), log=is_log)
        else:
            space[name] = optuna.distributions.CategoricalDistribution(sorted({str(value) for value in found}))
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # creating a study is news
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PED-ANOVA is experimental in Optuna 5
        evaluator: Any = PedAnovaImportanceEvaluator()
        if find_spec("sklearn") is not None:
            evaluator = FanovaImportanceEvaluator(seed=0)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
        for row in rows:
            params = {
                name: value if isinstance(values, optuna.distributions.FloatDistribution) else str(value)
                for name, values in space.items()
                for value in [row["values"][name]]
            }
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=space, value=row["objective"][goal])
            )
        found_shares = get_param_importances(study, evaluator=evaluator)
    optuna.logging.set_verbosity(level)
    return {name: float(share) for name, share in found_shares.items()}


def explain_missing_importances(rows: Sequence[Mapping[str, Any]], goal: str) -> str:
    """Return why the importances of an objective are unknown; ``""`` if :func:`importances` returns them."""
    rows, names = _comparable(rows)
    if len(rows) < _FEWEST_JOBS:
        return f"it needs {_FEWEST_JOBS} finished runs with a score, and there are {len(rows)}"
    if len({row["objective"][goal] for row in rows}) == 1:
        return f"all finished runs have the same {goal}"
    if not names:
        return "no setting has more than one value in the finished runs"
    return "" if find_spec("optuna") else "Optuna is not installed; install it with `pip install 'portico[optuna]'`"


def _comparable(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the finished rows with all objectives, and the parameters that all of them have and that vary."""
    rows = [row for row in rows if _is_measured(row)]
    names = [name for name in (rows[0]["values"] if rows else ()) if all(name in row["values"] for row in rows)]
    return rows, [name for name in names if len({row["values"][name] for row in rows}) > 1]


def _table(summary: Mapping[str, Any]) -> Table:
    table = Table(title=f"Sweep {summary['name']}", title_justify="left")
    parameters, goals = summary["parameters"], summary["goals"]
    # Without the group, in a terminal of 80 columns four values fit.
    short = [name.rpartition(".")[2] for name in parameters]
    for name in ("", *(short if len({*short}) == len(short) else parameters), *goals, "time", "folder"):
        table.add_column(name, justify="left" if name == "folder" else "right", overflow="fold")
    for row in summary["jobs"]:
        values = [format_value(row["values"].get(name)) for name in parameters]
        values += [format_value(value) if _is_measured(row) else row["status"] for value in row["objective"].values()]
        style = "bold" if row["number"] in summary["best"] else None
        time_taken = "{}:{:02}".format(*divmod(round(row["seconds"]), 60))
        table.add_row(str(row["number"]), *values, time_taken, row["folder"], style=style)
    return table


# ---- What was searched, and how


def read_search(folder: Path) -> dict[str, Any]:
    """Return how a sweep chose its values, as far as ``multirun.yaml`` in its folder can be read.

    Returns:
        ``space``, a mapping of ``name``, ``kind``, ``range`` and ``log`` for each searched key; ``method``, the
        settings of the search by name; ``command``, the words that begin the command of each of its runs.
    """
    from portico.trust.files import plain_yaml  # imports torch

    search: dict[str, Any] = {"space": [], "method": {}, "command": ["portico", "train"]}
    unreadable = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
    with suppress(*unreadable, yaml.YAMLError, HydraException):
        config = plain_yaml(read_text(folder / SWEEP_CONFIG))["hydra"]
        sweeper = config["sweeper"]
        search["space"] = _read_space(sweeper, config["overrides"]["task"])
        search["method"] = _describe_method(sweeper)
        sources = {source["provider"]: source["path"] for source in config["runtime"]["config_sources"]}
        flags = ["--config-dir", str(sources["command-line"])] if "command-line" in sources else []
        own = drop_sweep_overrides(config["overrides"]["hydra"])
        # A file of this group makes every command a sweep.
        mode = ["hydra.mode=RUN"] if config["runtime"]["choices"].get("sweep") else []
        search["command"] += [*flags, *own, *mode]
    return search


def _read_space(sweeper: Mapping[str, Any], arguments: Sequence[str]) -> list[dict[str, Any]]:
    space = {
        str(name): {"kind": str(values["type"]), "range": _describe_range(values), "log": bool(values.get("log"))}
        for name, values in (sweeper.get("search_space") or {}).items()
    }
    params = [f"{name}={value}" for name, value in (sweeper.get("params") or {}).items()]
    for parsed in OverridesParser.create().parse_overrides([*params, *arguments]):
        name = parsed.get_key_element().lstrip("+")
        space.pop(name, None)  # the command line takes precedence
        if parsed.is_sweep_override():
            space[name] = _describe_values(parsed, is_grid=sweeper[TARGET] == GRID_SWEEPER)
    return [{"name": name, **distribution} for name, distribution in space.items()]


def _describe_values(override: Override, *, is_grid: bool) -> dict[str, Any]:
    value: Any = override.value()
    is_log = "log" in getattr(value, "tags", ())
    if override.is_interval_sweep():
        kind = "int" if isinstance(value.start, int) and isinstance(value.end, int) else "float"
        return {"kind": kind, "range": f"{value.start} to {value.end}", "log": is_log}
    if override.is_range_sweep() and not is_grid:  # a grid leaves out the end of a range, a search includes it
        kind = "int" if isinstance(value.start, int) and isinstance(value.step, int) else "float"
        return {"kind": kind, "range": f"{value.start} to {value.stop}, step {value.step}", "log": is_log}
    return {"kind": "choice", "range": ", ".join(override.sweep_string_iterator()), "log": False}


def _describe_range(described: Mapping[str, Any]) -> str:
    if "choices" in described:
        return ", ".join(map(str, described["choices"]))
    step = f", step {described['step']}" if described.get("step") is not None else ""
    return f"{described['low']} to {described['high']}{step}"


def _describe_method(sweeper: Mapping[str, Any]) -> dict[str, str]:
    if sweeper[TARGET] == GRID_SWEEPER:
        return {"sampler": "every combination"}
    method = {name: _describe_object(sweeper[name]) for name in ("sampler", "pruner") if name in sweeper}
    method["sampler"] = method.get("sampler") or ("TPESampler" if "sampler" in sweeper else sweeper[TARGET])
    if "pruner" in method:
        method["pruner"] = method["pruner"] or "none"
    others = {"trials": "n_trials", "values drawn by": "custom_search_space", "constraints": "constraints"}
    return method | {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, key in others.items()
        if (value := sweeper.get(key))
    }


def _describe_object(configured: Any) -> str:
    """Return the class that a configuration names, without its module, and its arguments."""
    if not configured:
        return ""
    arguments = [f"{name}={value}" for name, value in configured.items() if name != TARGET and value is not None]
    name = str(configured.get(TARGET, "TPESampler")).rpartition(".")[2]
    return f"{name}({', '.join(arguments)})" if arguments else name


# ---- A sweep of this process


@dataclass
class _OwnSweep:
    folder: Path | None = None
    started: float = 0.0
    failed: set[int] = field(default_factory=set)
    """Numbers of jobs."""
    is_new: bool = False
    """Whether the sweep made the folder."""
    lock: int | None = None
    """Descriptor of the folder, which is locked while the sweep runs."""


_own_sweep: ContextVar[_OwnSweep] = ContextVar("own_sweep", default=_OwnSweep())  # noqa: B039  # only read


class SweepFolder(Callback):
    """A callback of Hydra that notes that a sweep runs, and in which folder; Hydra returns neither."""

    @override
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        own, folder = _own_sweep.get(), Path(config.hydra.sweep.dir).absolute()
        if is_first_process():
            own.is_new = not folder.exists()
            own.lock = _claim(folder, shared=config.hydra.sweeper[TARGET] == OPTUNA_SWEEPER)
        own.folder = folder
        # Hydra writes the first, and makes the folders of jobs.
        for path in (own.folder / SWEEP_CONFIG, *own.folder.glob("[0-9]*")):
            remove_detour(path)
        own.started = time.time()
        # The jobs in other processes should end as they do after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _claim(folder: Path, *, shared: bool) -> int | None:
    """Lock the folder of a sweep and return its descriptor, None if the file system has no locks.

    Ends the command if another sweep runs there; Hydra would turn an error of a callback into a warning.
    """
    try:
        return disk.lock_folder(folder, shared=shared)
    except BlockingIOError:
        exit_with_error(
            f"Another sweep is running in '{folder}'; wait until it has ended, or choose another folder with "
            "hydra.sweep.dir=<folder>."
        )
    except OSError:  # a folder that cannot be made is named when the first job needs it
        return None


@contextmanager
def reported_sweep() -> Iterator[_OwnSweep]:
    """Report the sweep that the block runs, if any, however it ends; yield its folder and its failed jobs."""
    own = _OwnSweep()
    _own_sweep.set(own)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield own
    finally:
        signal.signal(signal.SIGTERM, handler)
        if own.folder is not None and is_first_process() and any(own.folder.rglob(JOB_FILE)):
            report_sweep(own.folder)
            # A repeated search does not run its failed trials again; a repeated grid does.
            own.failed |= {
                job.number
                for job in read_jobs(own.folder)
                if job.status in (FAILED, KILLED) and (job.started >= own.started or job.trial is not None)
            }
        if own.is_new and own.folder is not None:
            with suppress(OSError):  # a sweep that is refused leaves no folder
                own.folder.rmdir()
        if own.lock is not None:
            os.close(own.lock)
