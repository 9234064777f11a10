"""How far a training has come."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.trainer_utils import EvalLoopOutput, TrainOutput, denumpify_detensorize

from portico.arguments import TrainingArguments
from portico.checkpoint.rng import set_rng_states
from portico.evaluation.session import EvaluationSession
from portico.facade.preparation import prepared_for_training
from portico.gradient_descent.batches import EpochPlan, count_epochs, dealt, present_states, set_states
from portico.gradient_descent.checkpointer import restore_lightning_callbacks
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.metrics import LossSums, batch_metrics, epoch_metrics, gpu_memory_mb, peak_memory_mb
from portico.lightning_internals import continue_from, end_epoch_after
from portico.plan import ResumePoint
from portico.run_start import fresh_state
from portico.state import TrainingRun
from portico.trainer import Trainer


@dataclass
class Progress:
    """What of a training is behind.

    Args:
        epochs_completed: Whole epochs.
        batches_in_epoch_completed: Optimizer steps of the present epoch.
        total_batches: Optimizer steps in all, with the present one.
        sums: Losses of the present epoch.
        epoch_start: Random states at the start of the present epoch.
    """

    epochs_completed: int = 0
    batches_in_epoch_completed: int = 0
    total_batches: int = 0
    sums: LossSums = field(default_factory=LossSums)
    epoch_start: dict[str, Any] | None = None

    def begin_epoch(self) -> None:
        """Begin an epoch that nothing of is behind."""
        self.batches_in_epoch_completed = 0
        self.sums = LossSums()

    def complete_epoch(self) -> None:
        """End the present epoch."""
        self.epochs_completed += 1
        self.batches_in_epoch_completed = 0
        self.epoch_start = None

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {
            "epochs_completed": self.epochs_completed,
            "batches_in_epoch_completed": self.batches_in_epoch_completed,
            "batch_num_total": self.total_batches,
        }

    def state_of_process(self) -> dict[str, Any]:
        """Return what each process has of its own, beside :meth:`state_dict`."""
        return {
            "sums": self.sums.state_dict(),
            "epoch_start": self.epoch_start if self.batches_in_epoch_completed else None,
        }

    def load_state_dict(self, state: dict[str, Any], of_process: dict[str, Any]) -> None:
        """Go on from a state, and from that of this process."""
        self.epochs_completed = state["epochs_completed"]
        self.batches_in_epoch_completed = state["batches_in_epoch_completed"]
        self.total_batches = state["batch_num_total"]
        self.sums = LossSums(**of_process["sums"])
        self.epoch_start = of_process["epoch_start"]


def rescale_gradients(model: nn.Module, grad_norm: float | bool | None) -> float | None:
    """Scale the gradients of ``model`` down to a norm of ``grad_norm``, and return the norm they had.

    Args:
        model: Whose parameters are looked at, those without a gradient aside.
        grad_norm: Largest norm; ``True`` only measures, ``False`` or ``None`` does nothing.
    """
    if not grad_norm:
        return None
    parameters = _with_gradients(model)
    if grad_norm is True:
        return torch.nn.utils.get_total_norm([_gradient(parameter) for parameter in parameters]).item()
    return torch.nn.utils.clip_grad_norm_(parameters, grad_norm).item()


def clip_gradients(model: nn.Module, grad_clipping: float | None) -> None:
    """Clamp every component of the gradients of ``model`` to ``[-grad_clipping, grad_clipping]``."""
    if grad_clipping is not None:
        torch.nn.utils.clip_grad_value_(_with_gradients(model), grad_clipping)


def _with_gradients(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.grad is not None]


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


class DescentRun(TrainingRun):
    """One ``train()`` of an AllenNLP trainer.

    In a step: batches of the group, forward and backward of each, gradients rescaled, then clipped, schedulers
    stepped, optimizer stepped, averages updated, TensorBoard and batch callbacks, checkpoint. After an epoch: see
    ``DescentMethods.complete_epoch``.

    Args:
        facade: The loop.
        descent: The AllenNLP trainer.
        **options: As of :class:`~portico.state.TrainingRun`.
    """

    plan: EpochPlan

    def __init__(self, facade: Any, *, descent: Any, **options: Any) -> None:
        super().__init__(facade, **options)
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
                self.facade.lightning_trainer,
                epoch=self.resume_point.epoch,
                num_batches_done=self.resume_point.num_batches_to_skip,
                batches_per_epoch=self.plan.steps_in_epoch,
                steps=self.facade.state.global_step,
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
        facade, plan = self.facade, self.plan
        batches = self._open_epoch()
        while group := list(islice(batches, plan.gradient_accumulation_steps)):
            plan.window.end += len(group)
            if len(group) < plan.gradient_accumulation_steps and not plan.is_sized:
                end_epoch_after(facade.lightning_trainer, plan.window.end)
            facade.current_gradient_accumulation_steps = len(group)
            self.group = group
            for position, batch in enumerate(group, start=1):
                self.closes_window = position == len(group)
                yield batch
                if facade.control.should_epoch_stop or facade.control.should_training_stop:
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
            self.facade.control.should_training_stop = True

    def _skipped(self, epoch: int) -> int:
        return self.resume_point.num_batches_to_skip if epoch == self.resume_point.epoch else 0

    def _open_epoch(self) -> Iterator[Any]:
        """Return the epoch's batches from where it goes on.

        What is behind is fetched again with the random states of then, so that loaders, samplers and data sets come
        to the same place; the states of the checkpoint come after it.
        """
        # The user's loader, of which the run may iterate a share.
        loader, args, progress = self.descent.data_loader, self.facade.args, self.descent.progress
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


class ValidationSession(EvaluationSession):
    """Runs the trainer's ``batch_outputs`` on each batch; the model counts its own metrics.

    Args:
        facade: The loop.
        loader: Validation batches.
        descent: The AllenNLP trainer.
        **options: As of :class:`~portico.evaluation.session.EvaluationSession`.

    Attributes:
        metrics: Metrics of the whole set, once it is finished.
    """

    def __init__(self, facade: Any, loader: Any, *, descent: Any, **options: Any) -> None:
        super().__init__(facade, loader, **options)
        self.descent = descent
        self.sums = LossSums()
        self.metrics: dict[str, Any] = {}

    def step(self, inputs: Any, batch_idx: int) -> None:
        """Run one batch, and tell the callbacks."""
        facade, descent = self.facade, self.descent
        with torch.no_grad(), facade.accelerator.autocast():
            outputs = descent.batch_outputs(inputs, for_training=False)
        self.num_observed_examples += 1
        if outputs.get("loss") is not None:
            self.sums.begin_batch()
            self.sums.add(outputs)
            self.sums.end_batch()
        descent.batch_callbacks(
            trainer=descent,
            batch_inputs=[inputs],
            batch_outputs=[outputs],
            batch_metrics=batch_metrics(descent.model, self.sums),
            epoch=descent.progress.epochs_completed,
            batch_number=self.sums.num_batches,
            is_training=False,
            is_primary=descent.is_primary,
            batch_grad_norm=None,
        )
        facade.control = facade.callback_handler.on_prediction_step(facade.args, facade.state, facade.control)

    def finish(self) -> EvalLoopOutput:
        """Compute the metrics of the whole set."""
        self.metrics = epoch_metrics(self.descent.model, self.sums, self.facade.accelerator)
        prefixed = self._prefixed(denumpify_detensorize(dict(self.metrics)))
        self.output = EvalLoopOutput(
            predictions=np.empty(0), label_ids=None, metrics=prefixed, num_samples=self.num_observed_examples
        )
        return self.output


# AllenNLP's rules take the place of these parts of the Hugging Face trainer.
PARTS_TURNED_OFF: dict[str, Any] = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "max_grad_norm": 0.0,
    "remove_unused_columns": False,
    "logging_nan_inf_filter": False,
}


def loop_arguments(
    *, output_dir: str, num_epochs: int, num_gradient_accumulation_steps: int, placement: Mapping[str, Any]
) -> TrainingArguments:
    """Return the training arguments of the loop.

    Args:
        output_dir: Folder of the run.
        num_epochs: Passes over the data.
        num_gradient_accumulation_steps: Batches of an optimizer step.
        placement: Lightning's accelerator, strategy, devices, nodes and precision.
    """
    return TrainingArguments(
        output_dir=output_dir,
        num_train_epochs=num_epochs,
        gradient_accumulation_steps=num_gradient_accumulation_steps,
        use_cpu=placement.get("accelerator") == "cpu",
        **PARTS_TURNED_OFF,
        **placement,
    )


class LoopTrainer(Trainer):
    """Runs the batches of an AllenNLP trainer through Lightning.

    Args:
        descent: The AllenNLP trainer.
        args: See :func:`loop_arguments`.
        **parts: Callbacks, loggers and plugins, as of :class:`~portico.trainer.Trainer`.

    Attributes:
        validation: The last validation.
        run_class: Class of a run.
    """

    loss_is_scaled_for_ga = False
    run_class: type[DescentRun] = DescentRun

    def __init__(self, descent: Any, args: TrainingArguments, **parts: Any) -> None:
        self.descent = descent
        self.validation: ValidationSession | None = None
        super().__init__(model=descent.model, args=args, optimizers=(descent.optimizer, None), **parts)
        # AllenNLP's models return means; nothing is scaled by a number of items.
        self.model_accepts_loss_kwargs = False

    def _seed_everything(self) -> None:
        """Leave the generators alone: AllenNLP's command seeds, its trainer does not."""

    # Data

    def get_train_dataloader(self) -> Any:
        """Return the user's loader, or this process's share of it."""
        return dealt(self.descent.data_loader, self.args)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the user's validation loader, or ``eval_dataset``, which must be a loader too.

        Raises:
            ConfigurationError: If there is none.
        """
        loader = self.descent.validation_data_loader if eval_dataset is None else eval_dataset
        if loader is None:
            raise ConfigurationError(
                "Validation results cannot be calculated without a `validation_data_loader`; give one to the trainer."
            )
        return dealt(loader, self.args)

    # Steps

    def run_model(self, inputs: Any, *, for_training: bool) -> dict[str, Any]:
        """Run the model on inputs that are on its device.

        Args:
            inputs: The model's inputs by name.
            for_training: Whether a backward pass follows.
        """
        outputs: dict[str, Any] = self.model_wrapped(**inputs)
        return outputs

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Make none: AllenNLP's schedulers are stepped by the run."""
        return None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a training batch with its penalty.

        Raises:
            ValueError: If it is not a number.
        """
        outputs = self.descent.batch_outputs(inputs, for_training=True)
        loss = outputs["loss"]
        if torch.isnan(loss):
            raise ValueError("nan loss encountered")
        run = self.module.run
        assert isinstance(run, DescentRun)
        run.collect(outputs)
        return (loss, outputs) if return_outputs else loss

    @property
    def _runs_own_backward(self) -> bool:
        return bool(self.descent.backward_callbacks)

    def _backward_now(self, loss: torch.Tensor) -> None:
        run = self.module.run
        assert isinstance(run, DescentRun)
        if not self.descent.backward_by_callbacks(run.outputs[-1]):
            super()._backward_now(loss)

    # Evaluation

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate with the moving averages in the place of the weights."""
        with self.descent.averaged_weights():
            return super().evaluation_loop(*args, **kwargs)

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        self.validation = ValidationSession(self, dataloader, descent=self.descent, **options)
        return self.validation

    # A run

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train from where the AllenNLP trainer stands, which has read its checkpoint.

        Args:
            resume_from_checkpoint: Not used.
            trial: Not used.
            ignore_keys_for_eval: Not used.
        """
        self.is_in_train = True
        try:
            with prepared_for_training(self.model, self.args):
                return self._fit(self._plan_descent())
        finally:
            self.is_in_train = False

    def _plan_descent(self) -> DescentRun:
        loader, progress = self.get_train_dataloader(), self.descent.progress
        plan = count_epochs(
            loader,
            num_epochs=self.descent.num_epochs,
            num_gradient_accumulation_steps=self.args.gradient_accumulation_steps,
            world_size=self.args.world_size,
        )
        self._trial = None
        self.state = fresh_state(self)
        self.state.compute_steps(self.args, plan.max_steps)
        self.state.global_step = progress.total_batches
        self.state.init_training_references(self, plan.max_steps, plan.num_train_epochs, None)
        self.callback_handler.train_dataloader = loader
        done = progress.batches_in_epoch_completed * plan.gradient_accumulation_steps
        return self.run_class(
            self,
            descent=self.descent,
            loader=loader,
            plan=plan,
            resume_point=ResumePoint(progress.epochs_completed, min(done, plan.steps_in_epoch)),
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any, metrics: Any = None) -> None:
        """Write an AllenNLP checkpoint where a callback asks for a checkpoint."""
        self.descent.save_checkpoint()
