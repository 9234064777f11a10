"""Search with the sweeps of Weights & Biases."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers.integrations.integration_utils import is_wandb_available, run_hp_search_wandb
from transformers.trainer_utils import BestRun, default_hp_space_wandb
from typing_extensions import override

from portico.tuning.backend import SearchBackend

if TYPE_CHECKING:
    from portico.contract import Facade

logger = logging.getLogger(__name__)


class WandbBackend(SearchBackend):
    """Runs of a sweep; options are ``sweep_id``, ``project``, ``entity``, ``name`` and ``metric``."""

    name = "wandb"
    requirement = "wandb"

    @override
    def is_available(self) -> bool:
        return is_wandb_available()

    @override
    def default_hp_space(self, trial: Any) -> dict[str, Any]:
        return default_hp_space_wandb(trial)

    @override
    def hyperparameters(self, facade: "Facade", trial: Any) -> Mapping[str, Any]:
        logger.info("W&B Sweep parameters: %s", trial)
        return trial

    @override
    def run_id(self, trial: Any) -> Any:
        import wandb

        return wandb.run.id

    @override
    def report(self, facade: "Facade", trial: Any, step: int, metrics: dict[str, Any]) -> None:
        """Do nothing: the callback of Weights & Biases logs every evaluation."""

    @override
    def run(self, facade: "Facade", n_trials: int, direction: Any, **options: Any) -> BestRun:
        return run_hp_search_wandb(facade, n_trials, direction, **options)
