"""The counts of a training run and the state it begins with, under the names that a subclass may override."""

from typing import Any

from portico.checkpoint.resume import read_state
from portico.contract import Facade
from portico.plan import ResumePoint
from portico.run_start import count_run, fresh_state


class CountingMethods(Facade):
    """How the facade counts a run."""

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[int, int, int, float, int, int, int]:
        """Count a training run.

        Args:
            args: Training arguments.
            dataloader: Training data.

        Returns:
            ``num_train_epochs``, ``num_update_steps_per_epoch``, ``num_examples``, ``num_train_samples``,
            ``total_train_batch_size``, ``steps_in_epoch`` (loader batches) and ``max_steps``.

        Raises:
            InputError: If nothing says when training ends.
        """
        return count_run(self, args, dataloader).as_training_values()

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return how many examples make one optimizer step, over all processes that see different data."""
        replicas = args.world_size // self.get_tp_size() // self.get_cp_size() // self.get_sp_size()
        return int(self._train_batch_size * args.gradient_accumulation_steps * replicas)

    def get_tp_size(self) -> int:
        """Return over how many processes each layer is split."""
        return int(getattr(self.model, "_tp_size", None) or 1)

    def get_cp_size(self) -> int:
        """Return over how many processes each sequence is split for attention: 1, since nothing here does that."""
        return 1

    def get_sp_size(self) -> int:
        """Return over how many processes each sequence is split: 1, since nothing here does that."""
        return 1

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        """Set the state of a run up, and return the epoch it begins with and the batches it skips there."""
        self.state = fresh_state(self)
        self.state.is_hyper_param_search = trial is not None
        self.state.train_batch_size = self._train_batch_size
        self.state.compute_steps(self.args, max_steps)
        resumed = read_state(resume_from_checkpoint, self.args) if resume_from_checkpoint is not None else None
        point = ResumePoint()
        if resumed is not None:
            self.state = resumed
            self._load_callback_state()
            point = ResumePoint.after(
                resumed.global_step,
                num_update_steps_per_epoch=num_update_steps_per_epoch,
                gradient_accumulation_steps=self.args.gradient_accumulation_steps,
                skips_data=not self.args.ignore_data_skip,
            )
        self.state.init_training_references(self, max_steps, num_train_epochs, trial)
        return point.epoch, point.num_batches_to_skip
