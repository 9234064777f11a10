"""The evaluations of a job of a sweep; not in :mod:`portico.cli.jobs`, since transformers takes seconds to import."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from hydra.utils import instantiate
from transformers import TrainerCallback
from typing_extensions import override

from portico.cli.jobs import JobPruned, SweepJob, storage_of


class JobProgress(TrainerCallback):
    """Record the objective at each evaluation during training, and end the run if the search prunes it.

    ``metrics_of`` returns the metrics of such an evaluation by the names that those of the whole run have.
    """

    def __init__(self, job: SweepJob, metrics_of: Callable[[Mapping[str, float]], Mapping[str, float]]) -> None:
        self.job, self.metrics_of = job, metrics_of
        self._trial: Any = None
        self._is_training = False

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_training = True
        # Of a resumed run, what follows its checkpoint comes again.
        self.job.evaluations = [one for one in self.job.evaluations if one[0] <= state.global_step]

    @override
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_training = False

    @override
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        name, found = next(iter(self.job.goals), ""), self.metrics_of(metrics or {})
        if not self._is_training or name not in found:
            return
        value = float(found[name])
        is_pruned = [False]
        if state.is_world_process_zero:
            self.job.evaluations.append([state.global_step, value])
            self.job.write()
            # A run whose last evaluation this is has nothing left to save.
            is_pruned = [self._report(value) and state.global_step < state.max_steps]
        if self.job.trial is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(is_pruned)
        if is_pruned[0]:
            raise JobPruned

    def _report(self, value: float) -> bool:
        if self.job.trial is None or len(self.job.goals) > 1:
            return False  # Optuna does not prune with several objectives
        import optuna

        described = self.job.trial
        if self._trial is None:
            study = optuna.load_study(
                study_name=described["study"],
                storage=storage_of(described["storage"]),
                sampler=optuna.samplers.RandomSampler(),  # the sweeper has drawn the values
                pruner=instantiate(described["pruner"]) or optuna.pruners.NopPruner(),
            )
            self._trial = optuna.trial.Trial(study, described["id"])
        known = self._trial.study.get_trials(deepcopy=False)[self.job.number]
        if known.state.is_finished():
            return False  # a run that somebody resumed after the search
        # By its number: steps differ with the batch size, and pruners compare equal steps.
        number = len(self.job.evaluations)
        if number not in known.intermediate_values:
            self._trial.report(value, number)
        return bool(self._trial.should_prune())
