"""Search with optuna."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers.integrations.integration_utils import is_optuna_available
from transformers.trainer_utils import BestRun, default_hp_space_optuna
from typing_extensions import override

from portico.tuning.backend import SearchBackend
from portico.tuning.memory import release_model
from portico.tuning.shared_trials import follow_trials, trials_shared_by

if TYPE_CHECKING:
    from portico.contract import Facade

logger = logging.getLogger(__name__)

_OPTIMIZE_OPTIONS = ("timeout", "gc_after_trial", "catch")


class OptunaBackend(SearchBackend):
    """Trials of an optuna study; options are those of ``create_study`` and of ``Study.optimize``.

    Of several processes, the first has the study; the others train the trials that it chooses.
    """

    name = "optuna"
    requirement = "'portico[optuna]'"
    takes_several_directions = True
    spans_processes = True

    @override
    def is_available(self) -> bool:
        return is_optuna_available()

    @override
    def default_hp_space(self, trial: Any) -> dict[str, Any]:
        return default_hp_space_optuna(trial)

    @override
    def hyperparameters(self, facade: "Facade", trial: Any) -> Mapping[str, Any]:
        chosen = facade.hp_space(trial)
        logger.info("Trial: %s", trial.params)
        return chosen

    @override
    def run_id(self, trial: Any) -> Any:
        return trial.number

    @override
    def report(self, facade: "Facade", trial: Any, step: int, metrics: dict[str, Any]) -> None:
        import optuna

        if facade.accelerator.from_first_process(_is_to_be_pruned(trial, facade.objective, step)):
            facade.callback_handler.on_train_end(facade.args, facade.state, facade.control)
            raise optuna.TrialPruned()

    @override
    def run(self, facade: "Facade", n_trials: int, direction: Any, **options: Any) -> BestRun | list[BestRun] | None:
        """Run the whole search, and return nothing in the processes that only follow."""
        import optuna

        if options.pop("n_jobs", 1) != 1:
            logger.warning("`n_jobs` has no effect: the trials share one trainer and run one after another.")
        optimizing = {name: options.pop(name) for name in _OPTIMIZE_OPTIONS if name in options}
        if not facade.accelerator.is_main_process:
            follow_trials(facade, _train_and_evaluate, survived=optimizing.get("catch", ()))
            return None
        goal = {"directions" if isinstance(direction, list) else "direction": direction}
        study = optuna.create_study(**goal, **options)
        with trials_shared_by(facade) as share:

            def objective(trial: Any) -> Any:
                share(trial)
                return _train_and_evaluate(facade, trial)

            study.optimize(objective, n_trials=n_trials, **optimizing)
        if len(study.directions) > 1:
            return [BestRun(str(best.number), best.values, best.params) for best in study.best_trials]
        best = study.best_trial
        return BestRun(str(best.number), study.best_value, best.params)


def _is_to_be_pruned(trial: Any, objective: Any, step: int) -> bool:
    # A fixed trial, which replays known parameters, belongs to no study; several objectives are never pruned.
    if not hasattr(trial, "study") or len(trial.study.directions) > 1:
        return False
    trial.report(objective, step)
    return bool(trial.should_prune())


def _train_and_evaluate(facade: "Facade", trial: Any) -> Any:
    facade.objective = None
    facade.train(trial=trial)
    if facade.objective is None:
        # There was no evaluation during training.
        facade.objective = facade.compute_objective(facade.evaluate())
    release_model(facade)
    return facade.objective
