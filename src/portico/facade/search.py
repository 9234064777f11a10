"""Hyperparameter search."""

import logging
from collections.abc import Callable
from typing import Any

from transformers.trainer_utils import BestRun, HPSearchBackend, default_compute_objective

from portico.contract import Facade
from portico.distributed.workers import in_every_process
from portico.errors import InputError, InputRuntimeError
from portico.tuning.objective import FiniteObjective, checked_directions
from portico.tuning.ray_backend import save_trial_checkpoint
from portico.tuning.registry import installed_backend, search_backend

logger = logging.getLogger(__name__)


class SearchMethods(Facade):
    """How the facade searches for hyperparameters."""

    # mypy fears that `kwargs` hold a `self`.
    @in_every_process  # type: ignore[arg-type]
    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun] | None:
        """Train once for each of several choices of training arguments, and return the best choice.

        A trial writes into ``run-<id>`` below ``args.output_dir``. Afterwards ``args`` are those of the last trial,
        and ``model`` is gone.

        Args:
            hp_space: Returns the training arguments of a trial (optuna), or the space they are drawn from (ray,
                wandb; called with ``None``); by default the space of transformers.
            compute_objective: Makes the objective, or several, of the metrics of an evaluation; by default the sum
                of all metrics, or the loss where there are no others. In the place of NaN the search gets the worst
                finite value.
            n_trials: Trials to run.
            direction: ``"minimize"`` or ``"maximize"``; a list of them for several objectives.
            backend: ``"optuna"``, ``"ray"`` or ``"wandb"``; by default the first that is installed.
            hp_name: Names a trial, and with it its folder.
            **kwargs: What the backend itself takes: ``optuna.create_study`` and ``Study.optimize``,
                ``ray.tune.run``, or ``sweep_id``, ``project``, ``entity``, ``name`` and ``metric`` of wandb.

        Returns:
            The best trial; a list of the best ones for several objectives. Of several processes, the first alone
            knows them: the others return ``None``.

        Raises:
            RuntimeError: If the backend is not installed, or there is no ``model_init``.
            ValueError: If there is no such backend or direction.
        """
        chosen = installed_backend(backend)
        if self.model_init is None:
            raise InputRuntimeError(
                "To use hyperparameter search, you need to pass your model through a model_init function."
            )
        directions = checked_directions(direction)
        if isinstance(direction, list) and not chosen.takes_several_directions:
            raise InputError(
                f"`direction={direction!r}` is a list, but {chosen.name} optimises one objective; set `direction` to "
                "'minimize' or 'maximize', or `backend` to 'optuna'."
            )
        if self.args.world_size > 1 and not chosen.spans_processes:
            raise InputError(
                f"The run is placed on {self.args.world_size} processes, and {chosen.name} trains each trial on one; "
                "set `backend='optuna'`, or `devices=1` and start one process."
            )
        self.hp_search_backend = HPSearchBackend(chosen.name)
        self.hp_space = chosen.default_hp_space if hp_space is None else hp_space
        self.hp_name = hp_name
        self.compute_objective = FiniteObjective(compute_objective or default_compute_objective, directions)
        try:
            return chosen.run(self, n_trials, direction, **kwargs)
        finally:
            self.hp_search_backend = None

    def _hp_search_setup(self, trial: Any) -> None:
        """Give the training arguments the values that ``trial`` chooses."""
        self._trial = trial
        if self.hp_search_backend is None or trial is None:
            return
        for name, value in search_backend(self.hp_search_backend).hyperparameters(self, trial).items():
            if not hasattr(self.args, name):
                logger.warning(
                    f"The hyperparameter `{name}` is no field of `TrainingArguments`; only `model_init` sees it."
                )
                continue
            present = getattr(self.args, name)
            setattr(self.args, name, value if present is None else type(present)(value))
        self._train_batch_size = self.args.train_batch_size
        self.create_accelerator_and_postprocess()

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        if self.hp_search_backend is None or trial is None:
            return
        metrics = metrics.copy()
        self.objective = self.compute_objective(metrics)
        search_backend(self.hp_search_backend).report(self, trial, step, metrics)

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        save_trial_checkpoint(self, checkpoint_dir)
