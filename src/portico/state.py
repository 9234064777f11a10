"""One training run, as Hugging Face tells it: Lightning's progress becomes ``TrainerState`` and ``TrainerControl``."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_utils import TrainOutput

from portico.checkpoint.resume import restore_training
from portico.errors import InputError
from portico.loading.loaders import skip_first_batches
from portico.plan import ResumePoint, RunPlan
from portico.run_log import logger

if TYPE_CHECKING:
    from portico.contract import Facade


class TrainingRun:
    """Everything that lives from the start of one ``train()`` to its end.

    The event bridge and the module call these methods from Lightning's hooks, in the order of the table in
    :mod:`portico.callbacks.bridge`; each does what ``transformers.Trainer`` does there and fires its event.

    Args:
        facade: Whose methods and callbacks are called.
        loader: Training data.
        plan: Counts of the run.
        checkpoint: Folder of the checkpoint the run goes on from.
        resume_point: Where in the data it goes on.
        trial: Trial of a hyperparameter search.
        ignore_keys_for_eval: Model outputs that evaluations during training leave out.
    """

    def __init__(
        self,
        facade: "Facade",
        *,
        loader: Any,
        plan: RunPlan,
        checkpoint: str | None = None,
        resume_point: ResumePoint | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> None:
        self.facade = facade
        self.loader = loader
        self.plan = plan
        self.checkpoint = checkpoint
        self.resume_point = resume_point or ResumePoint()
        self.trial = trial
        self.ignore_keys_for_eval = ignore_keys_for_eval
        self.epoch = self.resume_point.epoch
        self.first_step = 0
        self.num_batches_seen = 0
        self.num_items_in_batch: torch.Tensor | int | None = None
        # Loss and inputs of a batch whose backward pass Lightning has not run yet.
        self.unfinished: tuple[torch.Tensor, Any] | None = None
        # Whether no batch of the present window follows, be it full or cut short by the end of the data.
        self.closes_window = True
        self.grad_norm: torch.Tensor | float | None = None
        self.learning_rate: float | None = None
        self.output: TrainOutput | None = None

    def restore(self) -> None:
        """Bring optimizer, schedule and Lightning's loops to where the checkpoint left them, if there is one."""
        if self.checkpoint is not None:
            restore_training(self.facade, self.checkpoint, self.plan, self.resume_point)

    def begin(self) -> None:
        """Start the clock and the sums, then tell the callbacks that training begins."""
        facade = self.facade
        self.start_time = time.time()
        facade._initial_num_input_tokens_seen = facade.state.num_input_tokens_seen
        facade._initial_global_step = facade.state.global_step
        facade._globalstep_last_logged = facade.state.global_step
        # Summed on the device between two logs, so that a step does not wait for the device.
        facade._tr_loss = torch.tensor(0.0, device=facade.args.device)
        facade._total_loss_scalar = 0.0
        facade.model.zero_grad()
        self._fire("on_train_begin")
        if facade.args.eval_on_start:
            facade._evaluate(self.trial, self.ignore_keys_for_eval, skip_scheduler=True)

    def begin_epoch(self, epoch: int) -> None:
        """Enter epoch ``epoch``."""
        self.epoch = epoch
        self.first_step = self.facade.state.global_step
        self.num_batches_seen = self.resume_point.num_batches_to_skip if epoch == self.resume_point.epoch else 0
        self.grad_norm = None
        self.learning_rate = None
        self._fire("on_epoch_begin")

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the current epoch, fetched an accumulation window at a time."""
        facade, plan = self.facade, self.plan
        loader, first_step, late_rng = self._epoch_loader()
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self.epoch)
        batches = iter(loader)
        for update_step in range(first_step, plan.num_update_steps_per_epoch):
            window, self.num_items_in_batch = facade.get_batch_samples(
                batches, plan.num_batches_in_window(update_step), facade.args.device
            )
            facade.current_gradient_accumulation_steps = len(window)
            if late_rng:
                facade._load_rng_state(self.checkpoint)
                late_rng = False
            for position, batch in enumerate(window, start=1):
                self.closes_window = position == len(window)
                yield batch
                if facade.control.should_epoch_stop or facade.control.should_training_stop:
                    return

    def _epoch_loader(self) -> tuple[Any, int, bool]:
        """Return the epoch's loader, its first step, and whether random states come back after the first window."""
        if self.checkpoint is None or self.epoch != self.resume_point.epoch:
            return self.loader, 0, False
        skip = self.resume_point.num_batches_to_skip
        if skip == 0:
            self.facade._load_rng_state(self.checkpoint)
            return self.loader, 0, False
        return skip_first_batches(self.loader, skip), skip // self.plan.gradient_accumulation_steps, True

    def begin_batch(self, batch_idx: int) -> None:
        """Enter batch ``batch_idx`` of the epoch: the first of a window begins a step."""
        self.num_batches_seen = batch_idx + 1
        self.facade.accelerator.sync_gradients = self.plan.ends_window(batch_idx)
        if batch_idx % self.plan.gradient_accumulation_steps == 0:
            self._fire("on_step_begin")

    def add_loss(self, loss: torch.Tensor, inputs: Any) -> None:
        """Add the loss of a batch whose backward pass is done, and count its operations and tokens."""
        facade = self.facade
        if facade.args.logging_nan_inf_filter and not torch.isfinite(loss):
            since_log = 1 + facade.state.global_step - facade._globalstep_last_logged
            facade._tr_loss += facade._tr_loss / since_log
        else:
            facade._tr_loss += loss
        facade.current_flos += float(facade.floating_point_ops(inputs))
        facade._track_num_input_tokens(inputs)
        self.unfinished = None

    def before_optimizer_step(self) -> None:
        """Clip the gradients and measure their norm."""
        facade = self.facade
        norm = facade._clip_grad_norm(facade.model) if facade.args.max_grad_norm > 0 else None
        self.grad_norm = facade._get_grad_norm(facade.model, grad_norm=norm)
        self._fire("on_pre_optimizer_step")

    def after_optimizer_step(self) -> None:
        """Note the learning rate that the step was made with."""
        self._fire("on_optimizer_step")
        self.learning_rate = self.facade._get_learning_rate()

    def end_batch(self, batch_idx: int) -> None:
        """Close a batch: the last of a window ends a step, which may log, evaluate and save."""
        facade = self.facade
        if not self.plan.ends_window(batch_idx):
            self._fire("on_substep_end")
            return
        facade.model.zero_grad()
        facade.state.global_step += 1
        facade.state.epoch = self.epoch + (batch_idx + 1) / self.plan.steps_in_epoch
        self._fire("on_step_end")
        self._log_save_evaluate()

    def end_epoch(self) -> None:
        """Close the epoch; one without a single batch ends the run."""
        facade = self.facade
        if self.num_batches_seen == 0:
            logger.warning(
                "The training data gave no batch in epoch %d, so training stops at step %d of %d; an iterable data "
                "set with fewer examples than `max_steps` needs does this.",
                self.epoch,
                facade.state.global_step,
                facade.state.max_steps,
            )
            facade.control.should_training_stop = True
        self._fire("on_epoch_end")
        self._log_save_evaluate()
        self._check_progress()

    def _check_progress(self) -> None:
        """Refuse to go on without end over a stream too short for a single step."""
        control, window = self.facade.control, self.plan.gradient_accumulation_steps
        is_stopped = control.should_epoch_stop or control.should_training_stop
        made_no_step = self.facade.state.global_step == self.first_step and self.num_batches_seen < window
        if made_no_step and not is_stopped:
            raise InputError(
                f"The training data gave {self.num_batches_seen} batches in epoch {self.epoch}, fewer than the "
                f"{window} that make an optimizer step, so training would never end; set "
                "`gradient_accumulation_steps` or `per_device_train_batch_size` lower, or give more data."
            )

    def finish(self) -> None:
        """Report the run, bring back the best model if asked to, and tell the callbacks that training ended."""
        self.output = self.facade._finalize_training(self.trial, self.plan.num_train_samples, self.start_time)

    def _log_save_evaluate(self) -> None:
        facade = self.facade
        facade._maybe_log_save_evaluate(
            facade._tr_loss,
            self.grad_norm,
            facade.model_wrapped,
            self.trial,
            self.epoch,
            self.ignore_keys_for_eval,
            self.start_time,
            learning_rate=self.learning_rate,
        )

    def _fire(self, event: str) -> None:
        facade = self.facade
        facade.control = getattr(facade.callback_handler, event)(facade.args, facade.state, facade.control)
