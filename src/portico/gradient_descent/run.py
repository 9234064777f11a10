"""AllenNLP's order of events within a training, over the order of Hugging Face's."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from portico.checkpoint.resume import set_rng_states
from portico.gradient_descent.callback_states import restore_lightning_callbacks
from portico.gradient_descent.epoch_plan import EpochPlan
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.losses import batch_metrics
from portico.gradient_descent.memory import gpu_memory_mb, peak_memory_mb
from portico.gradient_descent.random_states import present_states, set_states
from portico.lightning_compat import continue_from, end_epoch_after
from portico.loop.run import TrainingRun


class DescentRun(TrainingRun):
    """One ``train()`` of an AllenNLP trainer.

    In a step: batches of the group, forward and backward of each, gradients rescaled, then clipped, schedulers
    stepped, optimizer stepped, averages updated, TensorBoard and batch callbacks, checkpoint. After an epoch: see
    ``DescentMethods.complete_epoch``.

    Args:
        trainer: The loop.
        descent: The AllenNLP trainer.
        **options: As of :class:`~portico.loop.run.TrainingRun`.
    """

    plan: EpochPlan

    def __init__(self, trainer: Any, *, descent: Any, **options: Any) -> None:
        super().__init__(trainer, **options)
        self.descent = descent
        # What is behind was restored before the run began.
        self.is_resumed = descent.progress.total_batches > 0
        self.group: list[Any] = []
        self.outputs: list[dict[str, Any]] = []
        self.memory: dict[str, float] = {}

    def restore(self) -> None:
        """Tell Lightning's loops and callbacks where the run goes on."""
        if self.descent.restored_callbacks is not None:
            restore_lightning_callbacks(self.descent, self.descent.restored_callbacks)
            self.descent.restored_callbacks = None
        if self.is_resumed:
            continue_from(
                self.trainer.lightning_trainer,
                epoch=self.resume_point.epoch,
                num_batches_done=self.resume_point.num_batches_to_skip,
                batches_per_epoch=self.plan.steps_in_epoch,
                steps=self.trainer.state.global_step,
            )

    def begin(self) -> None:
        """Begin the run; the epoch callbacks are told so."""
        super().begin()
        self.descent.begin()

    def begin_epoch(self, epoch: int) -> None:
        """Enter an epoch, perhaps in its middle."""
        super().begin_epoch(epoch)
        if self._skipped(epoch) == 0:
            self.descent.progress.begin_epoch()
        workers = {f"worker_{rank}_memory_MB": peak for rank, peak in peak_memory_mb(self.descent).items()}
        self.memory = workers | {f"gpu_{index}_memory_MB": peak for index, peak in gpu_memory_mb().items()}

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the present epoch, fetched a group at a time."""
        trainer, plan = self.trainer, self.plan
        batches = self._open_epoch()
        while group := list(islice(batches, plan.gradient_accumulation_steps)):
            plan.window.end += len(group)
            if len(group) < plan.gradient_accumulation_steps and not plan.is_sized:
                end_epoch_after(trainer.lightning_trainer, plan.window.end)
            trainer.current_gradient_accumulation_steps = len(group)
            self.group = group
            for position, batch in enumerate(group, start=1):
                self.closes_window = position == len(group)
                yield batch
                if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                    return

    def begin_batch(self, batch_idx: int) -> None:
        """Enter a batch: the first of a group begins a step."""
        super().begin_batch(batch_idx)
        if batch_idx == self.plan.window.end - len(self.group):
            self.descent.progress.total_batches += 1
            self.descent.progress.sums.begin_batch()
            self.outputs = []

    def collect(self, outputs: dict[str, Any]) -> None:
        """Keep what the model returned for a batch of the present step."""
        self.outputs.append(outputs)
        self.descent.progress.sums.add(outputs, len(self.group))

    def before_optimizer_step(self) -> None:
        """Rescale and clip the gradients, then step the schedulers, whose rates hold for this step already."""
        descent = self.descent
        self.grad_norm = descent.rescale_gradients()
        descent.clip_gradient()
        self.step_schedulers()
        self._fire("on_pre_optimizer_step")
        self._weights_before = self._weights_to_compare()

    def step_schedulers(self) -> None:
        """Set the rates of the present step."""
        for scheduler in self.descent.schedulers:
            scheduler.step_batch(self.descent.progress.total_batches)

    def after_optimizer_step(self) -> None:
        """Update the averages, then tell TensorBoard and callbacks, while the gradients are still there."""
        super().after_optimizer_step()
        descent, progress = self.descent, self.descent.progress
        if descent.moving_average is not None:
            descent.moving_average.apply(progress.total_batches)
        progress.batches_in_epoch_completed += 1
        progress.sums.end_batch()
        metrics = batch_metrics(descent.model, progress.sums)
        if descent.tensorboard_writer is not None and descent.is_primary:
            descent.tensorboard_writer.log_batch(
                descent.model, descent.optimizer, self.grad_norm, metrics, self.group, self._updates()
            )
        descent.batch_callbacks(
            trainer=descent,
            batch_inputs=self.group,
            batch_outputs=self.outputs,
            batch_metrics=metrics,
            epoch=self.epoch,
            batch_number=progress.batches_in_epoch_completed,
            is_training=True,
            is_primary=descent.is_primary,
            batch_grad_norm=self.grad_norm,
        )

    def end_batch(self, batch_idx: int) -> None:
        """Close a batch: the last of a group ends a step, which may be saved."""
        super().end_batch(batch_idx)
        if self.plan.ends_window(batch_idx):
            self.descent.maybe_save_checkpoint()

    def end_epoch(self) -> None:
        """Close the epoch; out of patience, the run ends."""
        super().end_epoch()
        self.descent.complete_epoch(self.epoch, self.memory)
        if self.descent.metric_tracker.should_stop_early():
            self.trainer.control.should_training_stop = True

    def _skipped(self, epoch: int) -> int:
        return self.resume_point.num_batches_to_skip if epoch == self.resume_point.epoch else 0

    def _open_epoch(self) -> Iterator[Any]:
        """Return the epoch's batches from where it goes on.

        What is behind is fetched again with the random states of then, so that loaders, samplers and data sets come
        to the same place; the states of the checkpoint come after it.
        """
        # The user's loader, of which the run may iterate a share.
        loader, args, progress = self.descent.data_loader, self.trainer.args, self.descent.progress
        _set_epoch(loader, self.epoch)
        skipped = self._skipped(self.epoch)
        resumed_here = self.is_resumed and self.epoch == self.resume_point.epoch
        if resumed_here and skipped:
            set_states(progress.epoch_start, loader, args)
        elif resumed_here:
            set_states(self.descent.restored_states, loader, args)
        progress.epoch_start = present_states(loader, args)
        batches = iter(self.loader)
        if skipped:
            fetched = sum(1 for _ in islice(batches, skipped))
            if fetched < skipped:
                raise ConfigurationError(
                    f"The checkpoint was written after batch {skipped} of an epoch, but `data_loader` gives only "
                    f"{fetched}; give the loader that the training began with, or another `serialization_dir`."
                )
            set_rng_states(self.descent.restored_states["global"], args)
        self.plan.window.end = skipped
        return batches

    def _weights_to_compare(self) -> dict[str, torch.Tensor] | None:
        writer = self.descent.tensorboard_writer
        if writer is None or not self.descent.is_primary or not writer.should_log_histograms_this_batch():
            return None
        return {name: weight.detach().cpu().clone() for name, weight in self.descent.model.named_parameters()}

    def _updates(self) -> dict[str, torch.Tensor] | None:
        before = self._weights_before
        if before is None:
            return None
        return {name: before[name] - weight.detach().cpu() for name, weight in self.descent.model.named_parameters()}


def _set_epoch(loader: Any, epoch: int) -> None:
    for part in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        set_epoch = getattr(part, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
