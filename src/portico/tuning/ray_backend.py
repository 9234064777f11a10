"""Search with Ray Tune."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.integrations.integration_utils import is_ray_tune_available, run_hp_search_ray
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, BestRun, default_hp_space_ray
from typing_extensions import override

from portico.checkpoint.callback_states import export_callbacks
from portico.checkpoint.writer import STATE_FILE, save_optimizer_and_scheduler
from portico.tuning.backend import SearchBackend
from portico.tuning.memory import release_model

if TYPE_CHECKING:
    from portico.contract import Facade


class RayBackend(SearchBackend):
    """Trials that Ray Tune runs in processes of its own, each with a copy of the trainer.

    Options are those of ``ray.tune.run``.
    """

    name = "ray"
    requirement = "'portico[ray]'"

    @override
    def is_available(self) -> bool:
        return is_ray_tune_available()

    @override
    def default_hp_space(self, trial: Any) -> dict[str, Any]:
        return default_hp_space_ray(trial)

    @override
    def hyperparameters(self, facade: "Facade", trial: Any) -> Mapping[str, Any]:
        # Ray's own integration of Weights & Biases is configured among the hyperparameters.
        trial.pop("wandb", None)
        return trial

    @override
    def run_id(self, trial: Any) -> Any:
        import ray.tune

        return ray.tune.get_context().get_trial_id()

    @override
    def report(self, facade: "Facade", trial: Any, step: int, metrics: dict[str, Any]) -> None:
        import ray.tune

        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if facade.control.should_save:
                facade._tune_save_checkpoint(checkpoint_dir=folder)
                checkpoint = ray.tune.Checkpoint.from_directory(folder)
            ray.tune.report({**metrics, "objective": facade.objective}, checkpoint=checkpoint)

    @override
    def run(self, facade: "Facade", n_trials: int, direction: Any, **options: Any) -> BestRun:
        # The trainer travels to the processes of the trials: without weights, since each trial makes its model.
        release_model(facade)
        return run_hp_search_ray(facade, n_trials, direction, **options)


def save_trial_checkpoint(facade: "Facade", folder: str) -> None:
    """Write what Ray Tune needs to go on with a trial into a checkpoint below ``folder``."""
    checkpoint = Path(folder) / f"{PREFIX_CHECKPOINT_DIR}-{facade.state.global_step}"
    facade.save_model(str(checkpoint), _internal_call=True)
    if not facade.args.should_save:
        return
    export_callbacks(facade)
    facade.state.save_to_json(str(checkpoint / STATE_FILE))
    save_optimizer_and_scheduler(facade, str(checkpoint))
