"""Hydra's sweeper on today's Optuna: ``hydra/sweeper=portico_optuna``. Hydra finds plugins in ``hydra_plugins`` only.

Every Hydra application imports this module, so it imports heavy packages inside functions.
"""

import logging
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import env_override, filter_overrides
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from typing_extensions import override

from portico.cli.jobs import (
    FINISHED,
    JOB_FILE,
    KILLED,
    PRUNED,
    SWEEP_CONFIG,
    ReportedTrial,
    SweepJob,
    read_goals,
    refuse_drawing_in_several_processes,
    threads_of_each,
)
from portico.errors import InputError, MissingPackageError
from portico.experiments.settings import schema_of
from portico.rules import check_values
from portico.trust.disk import replaced
from portico.trust.names import TARGET, import_target

log = logging.getLogger(__name__)

_STUDY = "sweep"
_JOURNAL = "study.journal"
_DIRECTIONS = {"max": "maximize", "min": "minimize"}
_CONSTRAINT = re.compile(r"\s*([\w./-]+)\s*(<=|>=)\s*([-+.\deE]+)\s*")
# Attributes of a trial in the study: who runs it, and where.
_WORKER, _FOLDER = "worker", "folder"


@dataclass(eq=False)
class OptunaSweeper(Sweeper):
    """Chooses the values of each job by the results of earlier jobs, and keeps the study in a storage.

    The same command over the same folder, or a second one at the same time, continues the study: finished trials
    count, interrupted ones resume from their checkpoints.
    """

    sampler: Any = None
    """``_target_`` and arguments of a sampler of Optuna; null: TPE."""
    pruner: Any = None
    """``_target_`` and arguments of a pruner, which judges each evaluation during training; null: none."""
    direction: Any = None
    """minimize or maximize, or a list; null: from ``objective.mode``."""
    storage: str | None = None
    """URL of a database, or a journal file; null: ``study.journal`` in the folder of the sweep."""
    study_name: str | None = None
    """Name of the study in the storage; null: one for the folder of the sweep."""
    n_trials: int = 20
    """Trials of the study, of all workers and all commands together."""
    n_jobs: int = 1
    """Trials at a time, where the launcher runs jobs at the same time."""
    max_failure_rate: float = 1.0
    """Largest share of failed trials, 0 to 1; above it the search stops."""
    params: Mapping[str, Any] | None = None
    """Values to choose from by key, in Hydra's override grammar: ``interval(0, 1)``, ``int(interval(1, 9))``,
    ``range(1, 5)`` with both ends, ``choice(a, b)``, ``tag(log, interval(1e-5, 1e-2))``. Values of the command
    line are added, and take precedence."""
    search_space: Mapping[str, Any] | None = None
    """The older form: ``type``, ``low``, ``high``, ``step``, ``log`` or ``choices`` by key."""
    custom_search_space: str | None = None
    """Dotted path of a function of the configuration and the trial that suggests more values."""
    enqueue: Sequence[Mapping[str, Any]] | None = None
    """Points that are tried first: values by key."""
    constraints: Sequence[str] | None = None
    """Bounds on metrics that the best trial must satisfy, such as "train_runtime <= 60"; samplers that support
    constraints also avoid violations."""

    @override
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        try:
            import optuna
        except ImportError as error:
            raise MissingPackageError(
                "Optuna is not installed; install it with `pip install 'portico[optuna]'`."
            ) from error
        if self.constraints and not hasattr(optuna.Trial, "set_constraint"):
            raise MissingPackageError(
                f"hydra.sweeper.constraints={list(self.constraints)} needs Optuna 5, and {optuna.__version__} is "
                "installed; run `pip install 'optuna>=5'`, or leave it out."
            )
        self._check_settings()
        if min(self.n_trials, self.n_jobs) < 1 or not 0 <= self.max_failure_rate <= 1:
            raise InputError(
                f"hydra.sweeper.n_trials={self.n_trials}, n_jobs={self.n_jobs}, max_failure_rate="
                f"{self.max_failure_rate} are out of range; set the first two to at least 1, and the rate to 0..1."
            )
        refuse_drawing_in_several_processes(str(config.hydra.sweeper["_target_"]))
        self.hydra_context: Any = hydra_context
        self.config: Any = config
        self.launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.folder = Path(config.hydra.sweep.dir).absolute()
        sweep: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
        if sweep["subdir"] != "${hydra.job.num}":
            log.warning(
                "hydra.sweep.subdir=%s has no effect on a search, which names the folder of a job after its trial; "
                "leave it out.",
                sweep["subdir"],
            )
        self.bounds = {text: _parse_constraint(text) for text in self.constraints or ()}

    def _check_settings(self) -> None:
        rules = {name: setting.rule for name, setting in schema_of(type(self)).known.items()}
        plain = ("storage", "study_name", "n_trials", "n_jobs", "max_failure_rate", "custom_search_space")
        check_values("hydra.sweeper", {name: getattr(self, name) for name in plain}, rules)
        for name, value in {"sampler": self.sampler, "pruner": self.pruner}.items():
            if isinstance(value, str):
                raise InputError(
                    f"hydra.sweeper.{name}={value} is only a string; choose a file with hydra/sweeper/{name}={value}, "
                    f"or set hydra.sweeper.{name}._target_ to a class of Optuna."
                )

    @override
    def sweep(self, arguments: list[str]) -> Any:
        self.space, self.fixed = self._search_space(arguments)
        if not self.space and self.custom_search_space is None:
            raise InputError(
                "The search has no values to choose from; add some to the command, as in "
                "'args.learning_rate=tag(log, interval(1e-4, 1e-2))', or set hydra.sweeper.params."
            )
        self._refuse_pruner_without_evaluations()
        self.folder.mkdir(parents=True, exist_ok=True)
        with replaced(self.folder / SWEEP_CONFIG) as staging:
            OmegaConf.save(self.config, staging)
        self._open_study()
        self._search()
        self._save_best()

    # ---- The study ----

    def _search_space(self, arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the distributions and the overrides that all jobs share, by key; later entries take precedence."""
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        space = {str(key): distribution_of_config(key, given) for key, given in (self.search_space or {}).items()}
        fixed: dict[str, str] = {}
        params = [f"{key}={value}" for key, value in (self.params or {}).items()]
        for parsed in parser.parse_overrides(params + list(arguments)):
            key = parsed.get_key_element()
            space.pop(key, None)
            fixed.pop(key, None)
            if parsed.is_sweep_override():
                space[key] = distribution_of(parsed)
            else:
                fixed[key] = str(parsed.input_line)
        return space, fixed

    def _refuse_pruner_without_evaluations(self) -> None:
        name = "eval_strategy"
        if not self.pruner or f"args.{name}" in self.space:
            return
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(self.fixed.values()))
        args = composed.get("args") or {}
        # Trainers without training arguments evaluate after each epoch; a file's `no` is false in YAML.
        if "_target_" in args and args.get(name, "no") in ("no", False):
            raise InputError(
                f"hydra/sweeper/pruner judges runs by their evaluations during training, and `args.{name}=no` has "
                f"none; set args.{name}=steps args.eval_steps=0.25, or hydra/sweeper/pruner=none."
            )

    def _open_study(self) -> None:
        import optuna

        from portico.cli.studies import build_pruner, open_storage

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        address = self.storage or str(self.folder / _JOURNAL)
        name = self.study_name or (_STUDY if self.storage is None else str(self.folder))
        pruner: Any = OmegaConf.to_container(self.pruner, resolve=True) if self.pruner else None
        directions: Any = self._directions()
        self.study = optuna.create_study(
            storage=open_storage(address),
            study_name=name,
            pruner=build_pruner(pruner),
            directions=directions,
            load_if_exists=True,
        )
        self.study.sampler = self._sampler(len(self.study.get_trials(deepcopy=False)))
        found = [direction.name.lower() for direction in self.study.directions]
        if found != directions:
            raise InputError(
                f"The study '{name}' in {address} has the directions {', '.join(found)}, and this search "
                f"{', '.join(directions)}; set hydra.sweeper.study_name to another name."
            )
        self._refuse_pickles(address)
        self._refuse_unknown_jobs(address)
        self.reporting = {"storage": address, "study": name, "pruner": pruner}
        for point in self.enqueue or ():
            own = {key: value for key, value in point.items() if key in self.space or not self.custom_search_space}
            self._check_point("hydra.sweeper.enqueue", own, self.space)
            self.study.enqueue_trial(dict(point), skip_if_exists=True)

    def _refuse_pickles(self, address: str) -> None:
        """Refuse a study with states of samplers that name code, since the folder may come from somebody else."""
        from portico.trust.files import UnpicklingError, check_sampler_states

        try:
            for trial in self.study.get_trials(deepcopy=False):
                check_sampler_states(trial.system_attrs)
        except UnpicklingError as error:
            raise InputError(
                f"The study in {address} holds the state of a sampler that could run code ({error}), and is not "
                "continued; set hydra.sweep.dir to another folder."
            ) from error

    def _refuse_unknown_jobs(self, address: str) -> None:
        """Refuse to draw values for the folder of a job that the study, which was lost or cut off, does not know."""
        jobs = [SweepJob.read(path.parent) for path in self.folder.glob(f"*/{JOB_FILE}")]
        num_trials = len(self.study.get_trials(deepcopy=False))  # after the jobs, which other workers add
        unknown = sorted(job.number for job in jobs if job is not None and job.number >= num_trials)
        if unknown:
            raise InputError(
                f"{self.folder} contains jobs {', '.join(map(str, unknown))}, but the study in {address} has "
                f"{num_trials} trials. Restore the study, move the folders of these jobs away to draw new values, or "
                "set hydra.sweep.dir to another folder."
            )

    def _directions(self) -> list[str]:
        goals = read_goals(cast(dict[str, Any], OmegaConf.to_container(self.config.objective, resolve=True)))
        of_goals = [_DIRECTIONS[mode] for mode in goals.values()]
        given = self.direction if self.direction is not None else of_goals
        directions = [
            str(getattr(direction, "name", direction)) for direction in ([given] if isinstance(given, str) else given)
        ]
        if not directions or (of_goals and directions != of_goals):
            raise InputError(
                f"hydra.sweeper.direction={self.direction} does not fit objective.metric={list(goals)} with "
                f"objective.mode={list(goals.values())}; set objective.metric, and objective.mode to max or min."
            )
        return directions

    def _sampler(self, num_trials: int) -> Any:
        """Return the sampler of a study that has ``num_trials`` trials."""
        import optuna

        described: Any = OmegaConf.to_container(self.sampler, resolve=True) if self.sampler else {}
        name = described.pop(TARGET, "optuna.samplers.TPESampler")
        sampler: Any = import_target(f"hydra.sweeper.sampler.{TARGET}", name)
        if sampler is optuna.samplers.GridSampler:
            described["search_space"] = {key: _grid_values(key, given) for key, given in self.space.items()}
            self.n_trials = min(self.n_trials, math.prod(map(len, described["search_space"].values())))
        # The seed of a grid or of a quasi-random sequence identifies it, and stays.
        elif sampler is not optuna.samplers.QMCSampler and described.get("seed") is not None:
            # A brute-force search continues where it stopped.
            if num_trials and sampler is not optuna.samplers.BruteForceSampler:
                log.warning(
                    f"The search continues after {num_trials} trials. Its sampler begins anew, so with "
                    f"`hydra.sweeper.sampler.seed={self.sampler['seed']}` the further trials have other values than "
                    "in a search without an interruption."
                )
            # With the seed it began with, a continued search would draw the first values again.
            described["seed"] += num_trials
        return sampler(**described)

    def _check_point(self, where: str, point: Mapping[str, Any], space: Mapping[str, Any]) -> None:
        """Refuse values that this command does not choose from; as overrides they could name code."""
        import optuna

        try:
            distributions = {key: space[key] for key in point}
            optuna.trial.create_trial(params=dict(point), distributions=distributions, value=0.0)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{where} has {dict(point)}, which is outside of the search space ({error}); its keys are "
                f"{', '.join(space)}."
            ) from error

    # ---- The trials ----

    def _search(self) -> None:
        """Keep ``n_jobs`` trials running until the study has its trials; a failed one does not end the search."""
        self.is_exhausted = False
        self.num_failed = 0
        self.num_ended = 0
        self.own: set[int] = set()
        self.jobs: dict[int, SweepJob] = {}
        # Launchers of Hydra return when all jobs of a batch have ended; ours take a job as soon as another ends.
        starts_one_by_one = hasattr(self.launcher, "start")
        if starts_one_by_one:
            self.launcher.num_expected, self.launcher.num_at_once = self.n_trials, self.n_jobs
        running: dict[Any, Any] = {}  # the trials by the jobs that our launchers started
        try:
            self._keep_running(running, starts_one_by_one)
        except BaseException:
            for job in self.jobs.values():
                job.read_outcome(None)
                job.write()
            raise

    def _keep_running(self, running: dict[Any, Any], starts_one_by_one: bool) -> None:
        while True:
            trials: list[Any] = []
            while len(running) + len(trials) < self.n_jobs and (trial := self._next_trial()) is not None:
                if starts_one_by_one:
                    (started,) = self.launcher.start([self._overrides_of_job(trial)], trial.number)
                    running[started] = trial
                else:
                    trials.append(trial)
            if trials:
                self._launch([self._overrides_of_job(trial) for trial in trials], trials[0].number)
                for trial in trials:
                    self._tell(trial)
            elif running:
                for ended in self.launcher.wait(list(running)):
                    self._tell(running.pop(ended))
            else:
                return

    def _launch(self, overrides: Sequence[Sequence[str]], number: int) -> Any:
        """Run trials in a launcher of Hydra; trials that run at the same time share the cores, as in our launchers."""
        shared = {}
        if len(overrides) > 1 and not isinstance(self.launcher, BasicLauncher) and "OMP_NUM_THREADS" not in os.environ:
            shared["OMP_NUM_THREADS"] = str(threads_of_each(len(overrides)))
        with env_override(shared):
            return self.launcher.launch(overrides, initial_job_idx=number)

    def _next_trial(self) -> Any:
        """Return an orphaned trial or a new one; None if the study has all its trials."""
        import optuna

        if self.num_failed > self.max_failure_rate * max(self.num_ended, 1):
            log.error("%d of %d trials have failed; the search ends.", self.num_failed, self.num_ended)
            return None
        trials = self.study.get_trials(deepcopy=False)
        for stored in trials:
            if stored.number not in self.own and self._is_abandoned(stored):
                trial = optuna.trial.Trial(self.study, stored._trial_id)
                break
        else:
            num_started = sum(trial.state is not optuna.trial.TrialState.WAITING for trial in trials)
            if num_started >= self.n_trials or self.is_exhausted:
                return None
            try:
                trial = self.study.ask(self.space)
            except ValueError as error:  # another kind of values for the same key
                raise InputError(
                    f"The study does not fit the search space of this command ({error}); choose values as in the "
                    "command that began it, or set hydra.sweep.dir to another folder."
                ) from error
        space = {**self.space, **self._suggest_values(trial)}
        self._check_point(
            "The study", {key: value for key, value in trial.params.items() if key not in self.fixed}, space
        )
        self.own.add(trial.number)
        trial.set_user_attr(_WORKER, f"{socket.gethostname()}:{os.getpid()}")
        trial.set_user_attr(_FOLDER, str(self.folder))
        overrides = list(filter_overrides(self._overrides(trial)))
        job = SweepJob.find_or_create(self.folder / str(trial.number), trial.number, overrides)
        job.trial = cast(ReportedTrial, {**self.reporting, "id": trial._trial_id})
        job.write()
        self.jobs[trial.number] = job
        return trial

    def _suggest_values(self, trial: Any) -> Mapping[str, Any]:
        """Let the user's function suggest its values of a trial, and return their distributions by key."""
        import optuna

        if self.custom_search_space is None:
            return {}
        suggest = import_target("hydra.sweeper.custom_search_space", self.custom_search_space)
        try:
            suggest(self.config, trial)
            # The study may hold further values, which only a second trial tells apart.
            alone = optuna.trial.FixedTrial(trial.params, trial.number)
            suggest(self.config, alone)
        except ValueError as error:  # another kind of values for the same key
            raise InputError(
                f"hydra.sweeper.custom_search_space={self.custom_search_space} does not fit the study ({error}); use "
                "the function that began it, or set hydra.sweep.dir to another folder."
            ) from error
        return alone.distributions

    def _is_abandoned(self, trial: Any) -> bool:
        """Return whether a trial of this folder was running in a process of this machine that has exited."""
        import psutil
        from optuna.trial import TrialState

        if trial.state is not TrialState.RUNNING or trial.user_attrs.get(_FOLDER) != str(self.folder):
            return False
        host, _, process = trial.user_attrs.get(_WORKER, "::").rpartition(":")
        if not process:
            return True
        return host == socket.gethostname() and (int(process) == os.getpid() or not psutil.pid_exists(int(process)))

    def _overrides(self, trial: Any) -> list[str]:
        chosen = {key: value for key, value in trial.params.items() if key not in self.fixed}
        return [*self.fixed.values(), *(f"{key}={_text(value)}" for key, value in chosen.items())]

    def _overrides_of_job(self, trial: Any) -> list[str]:
        """Return what a launcher composes: the folder is named after the trial, whose number may not be Hydra's."""
        return [*self._overrides(trial), f"hydra.sweep.subdir='{trial.number}'"]

    def _tell(self, trial: Any) -> None:
        """Record how a trial ended; one that was killed stays open, to be resumed by the next command."""
        from optuna.trial import TrialState

        job = self.jobs.pop(trial.number)
        job.read_outcome(None)
        job.write()
        bounded = [name for name, _ in self.bounds.values()]
        unknown = [name for name in bounded if job.status == FINISHED and name not in job.metrics]
        if unknown:
            raise InputError(
                f"hydra.sweeper.constraints bounds '{unknown[0]}', which is not a metric of the runs. They have: "
                f"{', '.join(job.metrics)}; name one of these."
            )
        state, values = TrialState.FAIL, list(job.objective.values())
        if job.status == FINISHED and None not in values:
            state = TrialState.COMPLETE
            for text, (name, violation) in self.bounds.items():
                trial.set_constraint(text, violation(job.metrics[name]))
            job.is_feasible = _is_feasible(trial)
            job.write()
        elif job.status == PRUNED:
            state = TrialState.PRUNED
        self.num_ended += 1
        self.num_failed += state is TrialState.FAIL
        if job.status == KILLED:
            trial.set_user_attr(_WORKER, "")
            return
        try:
            self.study.tell(trial, cast(Any, values) if state is TrialState.COMPLETE else None, state)
        except RuntimeError as error:
            # A sampler that has tried everything stops the study, which Optuna refuses outside of its own loop.
            if "Study.stop" not in str(error):
                raise
            self.is_exhausted = True

    def _save_best(self) -> None:
        """Write the file in which users of Hydra's own Optuna sweeper look for the best trial."""
        results: dict[str, Any] = {"name": "optuna"}
        trials = self.study.best_trials if len(self.study.directions) > 1 else self.study.trials
        kept = [trial for trial in trials if trial.state.name == "COMPLETE" and _is_feasible(trial)]
        if len(self.study.directions) > 1:
            results["solutions"] = [{"params": trial.params, "values": trial.values} for trial in kept]
        elif kept:
            choose = max if self.study.direction.name == "MAXIMIZE" else min
            best: Any = choose(kept, key=lambda trial: float(trial.value or 0))
            results |= {"best_params": best.params, "best_value": best.value}
        with replaced(self.folder / "optimization_results.yaml") as staging:
            OmegaConf.save(OmegaConf.create(results), staging)


def _is_feasible(trial: Any) -> bool:
    return all(violation <= 0 for violation in getattr(trial, "constraints", {}).values())  # until Optuna 5


# ---- The search space ----


def distribution_of(override: Override) -> Any:
    """Return the distribution of an override in Hydra's grammar; a range includes both ends, as in hydra-optuna."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value: Any = override.value()
    is_log = "log" in getattr(value, "tags", ())
    if override.is_interval_sweep():
        if value.start is None or value.end is None:
            raise InputError(f"'{override.input_line}' has no end; write interval(<low>, <high>).")
        are_whole = isinstance(value.start, int) and isinstance(value.end, int)
        return (IntDistribution if are_whole else FloatDistribution)(value.start, value.end, log=is_log)
    if override.is_range_sweep() and not value.shuffle:
        if all(isinstance(part, int) for part in (value.start, value.stop, value.step)):
            return IntDistribution(value.start, value.stop, step=value.step, log=is_log)
        return FloatDistribution(value.start, value.stop, step=value.step)
    return CategoricalDistribution([_number_or_text(text) for text in override.sweep_string_iterator()])


def distribution_of_config(key: object, config: Mapping[str, Any]) -> Any:
    """Return the distribution of an entry of ``search_space``."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kind, given = str(config.get("type")), {name: value for name, value in config.items() if name != "type"}
    kinds: dict[str, Any] = {
        "int": IntDistribution,
        "float": FloatDistribution,
        "categorical": CategoricalDistribution,
    }
    try:
        given = {name: list(value) if name == "choices" else value for name, value in given.items()}
        return kinds[kind](**{name: value for name, value in given.items() if (name, value) != ("step", None)})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"hydra.sweeper.search_space.{key} cannot be used ({error}); set type to int or float with low and high, "
            "and step or log if needed, or to categorical with choices."
        ) from error


def _number_or_text(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _text(value: object) -> str:
    """Return a chosen value as it is written in an override."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _grid_values(key: str, distribution: Any) -> list[Any]:
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    if distribution.step is None:
        raise InputError(f"The grid sampler cannot enumerate {key}; give it a choice(...) or a range(...).")
    count = int((distribution.high - distribution.low) / distribution.step + 1e-9) + 1
    return [distribution.low + index * distribution.step for index in range(count)]


def _parse_constraint(text: str) -> tuple[str, Any]:
    """Return the metric of a constraint, and the function that returns by how much a value violates it."""
    parts = _CONSTRAINT.fullmatch(text)
    if parts is None:
        raise InputError(f"'{text}' of hydra.sweeper.constraints is unknown; write '<metric> <= <number>' or '>='.")
    sign, limit = (1.0 if parts[2] == "<=" else -1.0), float(parts[3])
    return parts[1], lambda value: sign * (value - limit)
