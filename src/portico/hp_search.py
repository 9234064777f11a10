"""Hyperparameter search: trials of optuna, Ray Tune or Weights & Biases, trained one by one.

Ray and Weights & Biases run transformers' loops over the trials. Optuna's loop is written here: transformers' (5.23)
leaves the other processes waiting when a trial is pruned, and fails if an objective is NaN.
"""

import logging
import math
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from portico.compat import transformers as hf_compat
from portico.compat.transformers import BestRun, HPSearchBackend
from portico.distributed.placement import release_memory
from portico.distributed.processes import kill_children_on_error
from portico.errors import InputError, InputRuntimeError, InputTypeError

if TYPE_CHECKING:
    from torch import nn

    from portico.arguments import TrainingArguments
    from portico.compat.annotations import Trial
    from portico.distributed.accelerator import Accelerator


logger = logging.getLogger(__name__)

# The worst finite value of each direction.
_WORST = {"minimize": sys.float_info.max, "maximize": -sys.float_info.max}


# ---- Objectives ----


def check_directions(direction: str | list[str]) -> list[str]:
    """Return the directions of a search, one for each objective; refuse unknown ones."""
    given = direction if isinstance(direction, list) else [direction]
    # Optuna has an enumeration for them.
    directions = [str(getattr(direction, "name", direction)).lower() for direction in given]
    if not directions or not set(directions) <= _WORST.keys():
        raise InputError(
            f"Unknown `direction={direction!r}`; set it to 'minimize' or 'maximize', or to a list with "
            "one for each objective."
        )
    return directions


@dataclass(frozen=True)
class FiniteObjective:
    """An objective that is never NaN, which optuna rejects and which cannot be compared; picklable, for Ray."""

    compute_objective: Callable[[dict[str, float]], Any]
    """Returns one number or a sequence of them."""
    directions: Sequence[str]
    """``"minimize"`` or ``"maximize"`` for each number."""

    def __call__(self, metrics: dict[str, float]) -> Any:
        """Return the objective, with NaN replaced by the worst finite value."""
        objective = self.compute_objective(metrics)
        if isinstance(objective, list | tuple):
            return [_finite(value, direction) for value, direction in zip(objective, self.directions, strict=True)]
        return _finite(objective, self.directions[0])


def _finite(value: object, direction: str) -> Any:
    if not (isinstance(value, Real) and math.isnan(value)):
        return value
    return worst_instead("The objective of a trial", float(value), direction)


def worst_instead(name: str, value: float, direction: str) -> float:
    """Warn that searches cannot rank ``value``, and return the worst finite number of ``direction`` instead."""
    worst = _WORST[direction]
    shown = "NaN" if math.isnan(value) else value
    logger.warning("%s is %s; the search gets the worst finite value %g instead.", name, shown, worst)
    return worst


# ---- Backends ----


@dataclass(frozen=True)
class TrialEvaluation:
    """An evaluation during the training of a trial, and the actions available when it is reported."""

    step: int
    """Optimizer step of the evaluation."""
    metrics: dict[str, float]
    objective: Any
    """One number or a sequence of them."""
    accelerator: "Accelerator"
    save_checkpoint: Callable[[str], None] | None
    """Saves a checkpoint into a folder; ``None`` if none is due at this step."""
    end_training: Callable[[], object]
    """Calls ``on_train_end`` of the callbacks, before the trial is pruned."""


class SearchBackend(hf_compat.HyperParamSearchBackendBase, ABC):
    """A library that chooses hyperparameters trial by trial; subclasses also inherit its backend in transformers."""

    takes_several_directions: ClassVar[bool] = False
    spans_processes: ClassVar[bool] = False
    """Whether several processes can train a trial together."""

    def hyperparameters(self, trial: "Trial", hp_space: "Callable[[Trial], dict[str, Any]]") -> Mapping[str, Any]:
        """Return the training arguments that ``trial`` chooses."""
        return trial

    @abstractmethod
    def run_id(self, trial: "Trial") -> Any:
        """Return the library's id of the running trial, which names its folder."""

    def report(self, trial: "Trial", evaluation: TrialEvaluation) -> None:
        """Report the objective of an evaluation, which may end the trial."""


class OptunaSearch(SearchBackend, hf_compat.OptunaBackend):
    """Trials of an Optuna study; options go to ``create_study`` and ``Study.optimize``.

    With several processes, the first one holds the study, and the others train the trials that it chooses.
    """

    pip_package = "'portico[optuna]'"
    takes_several_directions = True
    spans_processes = True

    @override
    def hyperparameters(self, trial: "Trial", hp_space: "Callable[[Trial], dict[str, Any]]") -> Mapping[str, Any]:
        chosen = hp_space(trial)
        logger.info("Trial: %s", trial.params)
        return chosen

    @override
    def run_id(self, trial: "Trial") -> Any:
        return trial.number

    @override
    def report(self, trial: "Trial", evaluation: TrialEvaluation) -> None:
        import optuna

        is_pruned = False
        # A fixed trial, which replays known parameters, has no study; Optuna does not prune with several objectives.
        if hasattr(trial, "study") and len(trial.study.directions) == 1:
            trial.report(evaluation.objective, evaluation.step)
            is_pruned = trial.should_prune()
        if evaluation.accelerator.from_first_process(is_pruned):
            evaluation.end_training()
            raise optuna.TrialPruned()

    @override
    def run(self, trainer: Any, n_trials: int, direction: Any, **options: Any) -> BestRun | list[BestRun] | None:
        import optuna

        if options.pop("n_jobs", 1) != 1:
            logger.warning(
                "`n_jobs` has no effect: the trials share one trainer and run one after another; leave it out."
            )
        optimizing = {name: options.pop(name) for name in ("timeout", "gc_after_trial", "catch") if name in options}
        if not trainer.accelerator.is_main_process:
            _follow_trials(trainer, optimizing.get("catch", ()))
            return None
        goal: dict[str, Any] = {"directions" if isinstance(direction, list) else "direction": direction}
        study = optuna.create_study(**goal, **options)

        def objective(trial: "Trial") -> Any:
            if trainer.accelerator.use_distributed:
                # Optuna draws parameters when they are first requested.
                trainer.hp_space(trial)
                trainer.accelerator.from_first_process(optuna.trial.FixedTrial(trial.params, trial.number))
            try:
                return _train_and_evaluate(trainer, trial)
            finally:
                found[trial.number] = {name: getattr(trainer.state, name) for name in _BEST}

        found: dict[int, dict[str, Any]] = {}
        # Nothing is broadcast after a failure: the other processes failed too, or are killed.
        with kill_children_on_error():
            study.optimize(objective, n_trials=n_trials, **optimizing)
            trainer.accelerator.from_first_process(None)
        if len(study.directions) > 1:
            return [BestRun(str(best.number), best.values, best.params) for best in study.best_trials]
        best = study.best_trial
        _adopt_best(trainer, found.get(best.number, {}), best.params)
        return BestRun(str(best.number), study.best_value, best.params)


# What the state of a trainer says about its best checkpoint.
_BEST = ("best_metric", "best_global_step", "best_model_checkpoint")


def _adopt_best(trainer: Any, found: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Let the state name the best checkpoint of the best trial, and warn that the arguments are the last trial's."""
    for name, value in found.items():
        setattr(trainer.state, name, value)
    if any(getattr(trainer.args, name, value) != value for name, value in params.items()):
        logger.warning(
            "The training arguments are those of the last trial of the search, as under transformers; before training "
            "with them, set those of the best: `for name, value in best.hyperparameters.items(): "
            "setattr(trainer.args, name, value)`."
        )


def _follow_trials(trainer: Any, survived: type | tuple[type, ...]) -> None:
    """Train the trials of the first process until it sends ``None``.

    Errors in ``survived`` end a trial but not the search, like ``catch`` of ``Study.optimize``.
    """
    import optuna

    survived = survived if isinstance(survived, tuple) else (survived,)
    while (trial := trainer.accelerator.from_first_process(None)) is not None:
        with suppress(optuna.TrialPruned, *survived):
            _train_and_evaluate(trainer, trial)


def _train_and_evaluate(trainer: Any, trial: "Trial") -> Any:
    trainer.objective = None
    trainer.train(trial=trial)
    if trainer.objective is None:
        # There was no evaluation during training.
        trainer.objective = trainer.compute_objective(trainer.evaluate())
    release_model(trainer)
    return trainer.objective


def release_model(trainer: Any) -> None:
    """Release model, optimizer and scheduler, since the next trial makes new ones, and empty the device's cache."""
    handler = trainer.callback_handler
    trainer.model = trainer.model_wrapped = handler.model = None
    trainer.optimizer = handler.optimizer = None
    trainer.lr_scheduler = handler.lr_scheduler = None
    trainer._portico.module.set_model(None)
    release_memory()


class RaySearch(SearchBackend, hf_compat.RayTuneBackend):
    """Trials that Ray Tune runs in separate processes, each with a copy of the trainer.

    Options go to ``ray.tune.run``.
    """

    pip_package = "'portico[ray]'"

    @override
    def hyperparameters(self, trial: "Trial", hp_space: "Callable[[Trial], dict[str, Any]]") -> Mapping[str, Any]:
        # Ray's own integration of Weights & Biases is configured among the hyperparameters.
        trial.pop("wandb", None)
        return trial

    @override
    def run_id(self, trial: "Trial") -> Any:
        import ray.tune

        return ray.tune.get_context().get_trial_id()

    @override
    def report(self, trial: "Trial", evaluation: TrialEvaluation) -> None:
        import ray.tune

        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if evaluation.save_checkpoint is not None:
                evaluation.save_checkpoint(folder)
                checkpoint = ray.tune.Checkpoint.from_directory(folder)
            ray.tune.report({**evaluation.metrics, "objective": evaluation.objective}, checkpoint=checkpoint)

    @override
    def run(self, trainer: Any, n_trials: int, direction: Any, **options: Any) -> BestRun:
        # The trainer is pickled for the processes of the trials: without weights, since each trial makes its model.
        release_model(trainer)
        return super().run(trainer, n_trials, direction, **options)


class WandbSearch(SearchBackend, hf_compat.WandbBackend):
    """Runs of a sweep; options are ``sweep_id``, ``project``, ``entity``, ``name`` and ``metric``."""

    # Nothing to report: the callback of Weights & Biases logs every evaluation.

    @override
    def hyperparameters(self, trial: "Trial", hp_space: "Callable[[Trial], dict[str, Any]]") -> Mapping[str, Any]:
        logger.info("W&B Sweep parameters: %s", trial)
        return trial

    @override
    def run_id(self, trial: "Trial") -> Any:
        import wandb

        return wandb.run.id


def _backends() -> list[SearchBackend]:
    return [OptunaSearch(), RaySearch(), WandbSearch()]


def search_backend(name: object) -> SearchBackend:
    """Return the backend ``name``, a string or an ``HPSearchBackend``."""
    chosen = HPSearchBackend(name)
    return next(backend for backend in _backends() if backend.name == chosen)


def select_backend(name: object = None) -> SearchBackend:
    """Return the backend ``name``, or the first installed backend; refuse a backend that is not installed."""
    if name is not None:
        backend = search_backend(name)
        if not backend.is_available():
            raise InputRuntimeError(
                f"You picked the {backend.name} backend, but it is not installed. Run {backend.pip_install()}."
            )
        return backend
    available = [backend for backend in _backends() if backend.is_available()]
    if not available:
        commands = ", ".join(backend.pip_install() for backend in _backends())
        raise InputRuntimeError(f"No hyperparameter search backend available. Run one of {commands}.")
    if len(available) > 1:
        logger.info(
            "%d hyperparameter search backends available. Using %s as the default.", len(available), available[0].name
        )
    return available[0]


# ---- The search ----


def check_search(
    name: object,
    direction: str | list[str],
    model_init: "Callable[..., nn.Module] | None",
    world_size: int,
    n_trials: object,
    functions: Mapping[str, object],
) -> tuple[SearchBackend, list[str]]:
    """Return the backend of a search and the direction of each objective; refuse a search that cannot be run."""
    chosen = select_backend(name)
    if model_init is None:
        raise InputRuntimeError(
            "To use hyperparameter search, you need to pass your model through a model_init function. Give "
            "`Trainer(model_init=...)`, which makes a new model for each trial."
        )
    directions = check_directions(direction)
    if not _is_count(n_trials):
        raise InputError(f"`n_trials={n_trials!r}` is not a number of trials; set it to an int >= 1.")
    for argument, given in functions.items():
        if given is not None and not callable(given):
            raise InputTypeError(
                f"`{argument}` is a {type(given).__name__}; give a function, as `hyperparameter_search` describes it."
            )
    if isinstance(direction, list) and not chosen.takes_several_directions:
        raise InputError(
            f"`direction={direction!r}` is a list, but {chosen.name} optimises one objective; set `direction` to "
            "'minimize' or 'maximize', or `backend` to 'optuna'."
        )
    if world_size > 1 and not chosen.spans_processes:
        raise InputError(
            f"The run is placed on {world_size} processes, and {chosen.name} trains each trial on one; "
            "set `backend='optuna'`, or `devices=1` and start one process."
        )
    return chosen, directions


def _is_count(n_trials: Any) -> bool:
    """Return whether a search can count up to ``n_trials``; ``None`` is for Optuna's ``timeout``."""
    try:
        return n_trials is None or bool(n_trials >= 1)
    except (TypeError, ValueError):
        return False


def apply_trial(args: "TrainingArguments", chosen: Mapping[str, Any]) -> None:
    """Set training arguments to the values that a trial has ``chosen``, cast to their current types."""
    for name, value in chosen.items():
        if not hasattr(args, name):
            logger.warning(
                f"Trying to set {name} in the hyperparameter search but there is no corresponding field in "
                "`TrainingArguments`. Only `model_init` sees it."
            )
            continue
        present = getattr(args, name)
        setattr(args, name, value if present is None else type(present)(value))
