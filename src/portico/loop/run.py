"""One training run: the loop, the event table, the state of the run and the ``lightning.Trainer`` that runs it.

Names: ``trainer`` is portico's :class:`~portico.trainer.Trainer`, ``pl_trainer`` Lightning's. Where Lightning owns the
name ``trainer`` (arguments of hooks, ``TrainerModule.trainer``), portico's is ``hf_trainer``.

Lightning's side of the loop, batch by batch, is :class:`portico.loop.lean.LeanEpochLoop`. Its batches come from
:meth:`TrainingRun.batches`, through :class:`portico.loop.datamodule.TrainFeed`. A run is set up by
:class:`portico.loop.core.TrainerCore`, whose docstring says which object holds which.

Read in order: the two tables here, :class:`EventBridge` (when), :class:`TrainingRun` (what), the counts and messages
of a run, and at the end the ``lightning.Trainer``.

The loop, with the events of ``transformers.Trainer`` marked::

    trainer = Trainer(...)                                    # on_init_end
    trainer.train():
        on_train_begin                                        # then eval_on_start
        for epoch in epochs:
            on_epoch_begin
            for window in accumulation windows of the epoch:  # labels of the whole window are counted first
                on_step_begin
                for batch in window:
                    loss = trainer.training_step(batch)       # compute_loss
                    loss.backward()                           # loss summed, FLOPs and tokens counted
                    on_substep_end                            # every batch but the last of the window
                clip gradients, measure their norm
                on_pre_optimizer_step
                optimizer.step()
                on_optimizer_step
                scheduler.step(); model.zero_grad(); global_step += 1
                on_step_end
                [on_log] [on_evaluate] [on_save]              # as the control flags ask
            on_epoch_end
            [on_log] [on_evaluate] [on_save]
        on_log                                                # the final metrics; then the best model is loaded
        on_train_end

Which Lightning hook does what; ``B`` is :class:`EventBridge`, ``M`` :class:`~portico.loop.module.TrainerModule`, ``T``
a method of the trainer:

=============================================  ==============================================================
Lightning                                      Hugging Face
=============================================  ==============================================================
(constructor of the trainer)                   T ``on_init_end``
``configure_optimizers``                       M ``create_optimizer``, ``create_scheduler``
``on_fit_start``                               of a resumed run: B states of Lightning's callbacks; M optimizer,
                                               scheduler and loop counts
``on_train_start``                             B ``on_train_begin``, then ``eval_on_start``
``on_train_epoch_start``                       B ``on_epoch_begin``
(a window's first batch is fetched)            T all batches of the window fetched, their labels counted; once after
                                               a resume: RNG states restored
``on_train_batch_start``                       B ``on_step_begin``, at the first batch of a window
``training_step``                              M ``training_step`` -> ``compute_loss``
``on_after_backward``                          M loss summed, FLOPs and tokens counted
``configure_gradient_clipping``                M clipping, gradient norm, ``on_pre_optimizer_step``
``optimizer_step``                             M the step, ``on_optimizer_step``, learning rate noted
``lr_scheduler_step``                          M scheduler, unless it steps after evaluations
``on_train_batch_end``, window open            B ``on_substep_end``
``on_train_batch_end``, window closed          B gradients zeroed, ``global_step += 1``, ``on_step_end``, then
                                               T ``on_log``, ``on_evaluate``, ``on_save``
``validation_step`` / ``test_step``            M ``prediction_step``, ``on_prediction_step``
``on_train_epoch_end``                         B ``on_epoch_end``, then T ``on_log``, ``on_evaluate``, ``on_save``
``on_train_end``                               M final log, best model, ``on_train_end``
=============================================  ==============================================================

Lightning's ``on_before_optimizer_step`` comes before clipping, too early for ``on_pre_optimizer_step``; its
``optimizer_zero_grad`` comes before backward, where Hugging Face zeroes after the step. The reference is
``Trainer._run_epoch`` in transformers 5.23.
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint, ProgressBar, WeightAveraging
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.precision import Precision
from torch import nn
from torch.utils.data import IterableDataset
from transformers import TrainerState

from portico.checkpoint.resume import (
    EpochStart,
    load_lightning_states,
    load_stream_position,
    portable_rng_states,
    present_rng_states,
    save_position,
    save_stream_position,
    set_rng_states,
)
from portico.checkpoint.writer import (
    export_callback_states,
    exportable_callbacks,
    reserve_copies,
    save_lightning_states,
    update_lightning_states,
)
from portico.compat import lightning as lightning_compat
from portico.compat.transformers import TrainOutput, get_model_param_count, has_length, logger
from portico.data.loaders import (
    DataLoaderShard,
    iterate_to_end,
    num_examples_in_round,
    skip_first_batches,
    skip_first_examples,
)
from portico.distributed.placement import cluster_plugins, resolve_run_placement
from portico.distributed.precision import autocast_forward
from portico.distributed.processes import Declarations, begin_call, is_in_worker, kill_children, kill_children_on_error
from portico.distributed.signals import disable_sigterm_handler, ending_plainly, stop_between_batches
from portico.errors import InputError
from portico.loop.lean import use_lean_loops
from portico.loop.module import BackwardPass
from portico.loop.plan import ResumePoint, RunPlan
from portico.trust.files import pickled

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments
    from portico.compat.annotations import Batch, Loader, NumItems, Trial
    from portico.loop.corrections import BatchShare
    from portico.loop.hooks import TrainerHooks
    from portico.loop.module import TrainerModule


_CHECKPOINT_KEY = "portico"  # in a checkpoint of Lightning
_IN_CHECKPOINT = "checkpoint/"  # before the keys that callbacks add to a checkpoint of Lightning
# Flags of `TrainerControl` that lead to work of all processes together.
_DECLARED = {
    "should_training_stop": "stops training",
    "should_epoch_stop": "stops the epoch",
    "should_log": "logs",
    "should_evaluate": "evaluates",
    "should_save": "saves",
}


class EventBridge(Callback):
    """The callback at index 0: it updates the trainer's state before any other Lightning callback reads the state.

    Steps are not counted in module hooks, which run after callbacks: a ``ModelCheckpoint`` would store the previous
    step.
    """

    def __init__(self, run: "TrainingRun") -> None:
        self.run = run

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Before the same hook of the callbacks that are restored, as Lightning does.
        self.run.restore_lightning_states()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.run.begin()
        # Lightning skips `on_train_epoch_start` for an epoch resumed in the middle (`_FitLoop.on_advance_start`).
        if lightning_compat.is_restarted_mid_epoch(trainer):
            self.run.begin_epoch(trainer.current_epoch)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.run.begin_epoch(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: "Batch", batch_idx: int
    ) -> None:
        self.run.begin_batch(batch_idx)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: "Batch", batch_idx: int
    ) -> None:
        self.run.end_batch(batch_idx)
        self._agree_on_stopping(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._agree_on_stopping(trainer)
        self.run.end_epoch()
        self._agree_on_stopping(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint[_CHECKPOINT_KEY] = self.run.checkpoint_state()

    def _agree_on_stopping(self, trainer: pl.Trainer) -> None:
        # Both a Lightning callback (`EarlyStopping`) and a Hugging Face callback may stop the run.
        control = self.run.trainer.control
        stop = control.should_training_stop or trainer.should_stop
        control.should_training_stop = trainer.should_stop = stop


@dataclass(eq=False, repr=False)
class TrainingRun:
    """All state that lives from the start to the end of one ``train()``.

    The event bridge and the module call these methods from Lightning's hooks, in the order of the table above; each
    does what ``transformers.Trainer`` does there and fires its event.
    """

    trainer: "TrainerHooks"
    _: KW_ONLY
    loader: "Loader"
    plan: RunPlan
    checkpoint: str | None = None  # folder to resume from
    resume_point: ResumePoint = field(default_factory=ResumePoint)
    trial: "Trial" = None
    ignore_keys_for_eval: list[str] | None = None
    is_lightnings: bool = False  # whether the user's `lightning.Trainer` decides when to validate and save

    def __post_init__(self) -> None:
        self.core = self.trainer._portico
        self.device = self.trainer.args.device
        self.data_parallel_size = self.trainer.accelerator.data_parallel_size
        self._keep_model()
        # Sum of the losses since the last log, kept on the device, so that a step does not wait for the device.
        self.tr_loss = torch.tensor(0.0, device=self.device)
        self.declarations = Declarations() if self.trainer.args.world_size > 1 else None
        self.epoch_start: EpochStart | None = None  # the generators before the order of the epoch was drawn
        self.epoch_loader: Any = self.loader  # of the current epoch; the rest of it after a resume
        self.total_loss_scalar = 0.0  # of the losses logged so far
        self.start_time = 0.0
        self.is_trial = False  # whether only a few batches are tried out (`fast_dev_run`)
        self.globalstep_last_logged = self.initial_global_step = 0
        self.initial_num_input_tokens_seen = 0
        self.epoch = self.resume_point.epoch
        self.global_step_at_epoch_start = 0
        self.num_batches_seen = 0  # in the epoch, including batches skipped on resume
        self.num_items_in_batch: NumItems = None  # labels in the window, if the model takes their number
        self.share: BatchShare | None = None  # of the current batch in the loss of its window, if that is corrected
        self.steps_on_leftover = False  # whether a stream's last window is short but still makes a step
        self.makes_step = False  # whether the optimizer steps after the current batch
        # Whether the current batch is the last one fetched for its window, at which processes average gradients. A
        # short window at the end of a stream closes without a step.
        self.closes_window = True
        self.backward = BackwardPass(self.core.backward_at_once, inside_step=self.core.runs_backward_in_step)
        # Loss and inputs of a batch until its backward pass is done.
        self.step_to_count: tuple[torch.Tensor, Batch] | None = None
        self.grad_norm: torch.Tensor | float | None = None  # at the last optimizer step
        self.learning_rate: float | None = None  # of the last optimizer step
        self.output: TrainOutput | None = None
        self.next_batch_size: int | None = None  # with which a search before the first step starts the run again
        self.rng_states: dict[str, Any] | None = None  # of a checkpoint of Lightning
        self.states_written: bytes | None = None  # of Lightning's callbacks, in the checkpoint of this step
        self.last_checkpoint: Path | None = None

    def _keep_model(self) -> None:
        # A callback may replace the models on the trainer; as in transformers, this run trains on with these.
        self.model, self.model_wrapped = self.trainer.model, self.trainer.model_wrapped

    def release_model(self) -> None:
        """Let the memory of the model be freed, after the run."""
        for name in ("model", "model_wrapped"):
            self.__dict__.pop(name, None)  # an earlier call may have released it

    def resume_at(self, lightning_checkpoint: Mapping[str, Any]) -> None:
        """Resume from a Lightning checkpoint; Lightning restores optimizer, schedule and loops."""
        trainer, plan = self.trainer, self.plan
        saved = lightning_checkpoint.get(_CHECKPOINT_KEY, {})
        state = TrainerState(**saved["state"]) if saved else fresh_state(trainer)
        state.global_step = lightning_checkpoint["global_step"]
        state.init_training_references(trainer, plan.max_steps, plan.num_train_epochs, None)
        state.compute_steps(trainer.args, plan.max_steps)
        self.core.adopt_state(state)
        self.rng_states = saved.get("rng_states")
        self.resume_point = ResumePoint.locate(
            trainer.state.global_step,
            num_update_steps_per_epoch=plan.num_update_steps_per_epoch,
            gradient_accumulation_steps=plan.gradient_accumulation_steps,
            skips_data=True,
        )
        self.epoch = self.resume_point.epoch

    def checkpoint_state(self) -> dict[str, Any]:
        """Return the run's part of a Lightning checkpoint, as plain values and tensors."""
        trainer = self.trainer
        export_callback_states(trainer.callback_handler, trainer.control, trainer.state)
        saved: dict[str, Any] = {"state": asdict(self.trainer.state)}
        if self.trainer.args.world_size == 1:
            # Each process has different states, but Lightning writes what the first process returns.
            saved["rng_states"] = portable_rng_states(present_rng_states(self.trainer.args))
        return saved

    def restore(self) -> None:
        """Restore optimizer, scheduler and Lightning's loops from the checkpoint, if there is one."""
        if self.checkpoint is None:
            return
        self.core.restore_optimizer_and_schedule(self.checkpoint)
        lightning_compat.continue_from(
            self.core.lightning_trainer,
            epoch=self.resume_point.epoch,
            num_batches_done=self.resume_point.num_batches_to_skip,
            batches_per_epoch=self.plan.steps_in_epoch,
            steps=self.trainer.state.global_step,
        )

    def _stateful(self) -> dict[str, Any]:
        """Return the callbacks of Lightning and the data module, by the name of their states in a checkpoint."""
        callbacks: list[Callback] = self.core.lightning_trainer.callbacks
        named = {callback.state_key: callback for callback in callbacks if not isinstance(callback, EventBridge)}
        return {**named, type(self.core.datamodule).__name__: self.core.datamodule}

    def save_lightning_states(self, folder: str) -> None:
        """Write the states of Lightning's callbacks and of the user's data modules into a checkpoint."""
        states = self._collect_states()
        pl_trainer, module = self.core.lightning_trainer, self.core.module
        # What callbacks add to a checkpoint of Lightning, such as the averages of weights.
        added: dict[str, Any] = {}
        parts = self._stateful().values()
        adding = [part for part in parts if isinstance(part, Callback) and _adds_to_checkpoints(part)]
        if adding:
            checkpoint = self._build_checkpoint(module)
            usual = set(checkpoint)
            for callback in adding:
                callback.on_save_checkpoint(pl_trainer, module, checkpoint)
            added = {_IN_CHECKPOINT + name: checkpoint[name] for name in checkpoint.keys() - usual}
        self.states_written = pickled(states) if states else None
        save_lightning_states(self.core.checkpoint_parts(), Path(folder), states | added)

    def _collect_states(self) -> dict[str, Any]:
        return {name: state for name, part in self._stateful().items() if (state := part.state_dict())}

    def _update_lightning_states(self) -> None:
        """Write the states in the last checkpoint again, which callbacks changed in their hooks of the same step.

        The bridge saves before the hooks of other callbacks run, such as a ``ModelCheckpoint`` that writes a file.
        """
        written, self.states_written = self.states_written, None
        folder = self.last_checkpoint
        states = self._collect_states()
        if folder is not None and folder.is_dir() and pickled(states) != written:
            update_lightning_states(self.core.checkpoint_parts(), folder, states)

    def restore_lightning_states(self) -> None:
        """Restore what :meth:`save_lightning_states` wrote, if the run resumes; warn of states that are missing."""
        if self.checkpoint is None or self.is_lightnings:
            return
        states, stateful = load_lightning_states(Path(self.checkpoint)), self._stateful()
        module = self.core.module
        added = {
            name.removeprefix(_IN_CHECKPOINT): state
            for name, state in states.items()
            if name.startswith(_IN_CHECKPOINT)
        }
        checkpoint = {**self._build_checkpoint(module), **added} if added else {}
        missing = [name for name, part in stateful.items() if name not in states and part.state_dict()]
        if missing:
            logger.warning(
                f"{self.checkpoint} has no state of {', '.join(missing)}, which start afresh: it was written by "
                "another library, or without them."
            )
        for name, part in stateful.items():
            if isinstance(part, Callback) and added:
                part.on_load_checkpoint(self.core.lightning_trainer, module, checkpoint)
            if name in states:
                part.load_state_dict(states[name])

    def _build_checkpoint(self, module: "TrainerModule") -> dict[str, Any]:
        pl_trainer = self.core.lightning_trainer
        counts = {"epoch": pl_trainer.current_epoch, "global_step": self.trainer.state.global_step}
        return {**counts, "state_dict": module.state_dict()}

    def begin(self) -> None:
        trainer = self.trainer
        self.start_time = time.time()
        self.is_trial = lightning_compat.is_fast_dev_run(self.core.lightning_trainer)
        self.initial_num_input_tokens_seen = trainer.state.num_input_tokens_seen
        self.globalstep_last_logged = self.initial_global_step = trainer.state.global_step
        self._keep_model()  # which the strategy has wrapped
        self.model.zero_grad()
        self._fire("on_train_begin")
        if trainer.args.eval_on_start:
            trainer._evaluate(self.trial, self.ignore_keys_for_eval, skip_scheduler=True)

    def begin_epoch(self, epoch: int) -> None:
        if self.states_written is not None:
            self._update_lightning_states()
        self.epoch = epoch
        self.steps_on_leftover = False
        self.global_step_at_epoch_start = self.trainer.state.global_step
        self.num_batches_seen = self.resume_point.num_batches_to_skip if epoch == self.resume_point.epoch else 0
        self.grad_norm = None
        self.learning_rate = None
        self._fire("on_epoch_begin")

    def batches(self) -> Iterator["Batch"]:
        """Yield the batches of the current epoch, fetched an accumulation window at a time.

        A window is fetched before its first batch is trained on, since its labels are counted first (transformers
        5.23, ``Trainer._run_epoch`` and ``get_batch_samples``). This matters to datasets that draw random numbers.
        """
        self._follow_arguments()
        trainer, plan = self.trainer, self.plan
        loader, first_update_step, restores_rng = self._choose_epoch_loader()
        # Batches of another size may have ended inside a window of this run.
        num_skipped = self.resume_point.num_batches_to_skip % plan.gradient_accumulation_steps if restores_rng else 0
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self.epoch)
        self.epoch_loader = loader
        if isinstance(loader, DataLoaderShard):
            loader.before_fetch = None
            if trainer.args.save_strategy != "no":
                # A window and the batch after it are fetched before a step that may be saved.
                loader.num_positions_kept = plan.gradient_accumulation_steps + 1
        has_restored = False

        def restore() -> None:
            nonlocal has_restored
            has_restored = True
            self._restore_rng_states()

        if self.checkpoint is not None and self.epoch == self.resume_point.epoch:
            self.core.corrections.restore_order(
                self.checkpoint, loader, self.epoch, restore=restore if restores_rng else None
            )
        if trainer.args.save_strategy != "no":
            self.epoch_start = EpochStart.capture(loader, trainer.args)
            if "resume_order" in self.core.corrections:
                self.epoch_start.watch(loader, trainer.args)
        batches = iterate_to_end(iter(loader))
        last_step = plan.num_update_steps_per_epoch - 1
        for update_step in range(first_update_step, last_step + 1):
            self._follow_arguments()
            # The size of the last window is known from the start of the epoch on.
            current = plan if update_step == last_step else self.plan
            num_planned = current.num_batches_in_window(update_step) - num_skipped
            num_skipped = 0
            window, self.num_items_in_batch = trainer.get_batch_samples(batches, num_planned, self.device)
            trainer.current_gradient_accumulation_steps = len(window)
            window, shares = self.core.corrections.split_shares(window, loader, self.num_items_in_batch)
            if 0 < len(window) < num_planned and not has_length(self.loader):
                self._end_stream(update_step, len(window))
            if restores_rng:
                # Skipping batches draws random numbers, so transformers restores the states after the first window.
                if not has_restored:
                    self._restore_rng_states()
                restores_rng = False
            for position, (batch, self.share) in enumerate(zip(window, shares, strict=True), start=1):
                # By what was fetched: an override of `get_batch_samples` may return fewer batches than planned, and
                # DDP must synchronise on the last one.
                self.closes_window = position == len(window)
                yield batch
                # Exhausting the generator ends Lightning's epoch, although `TrainFeed` announced more batches.
                if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                    return

    def _follow_arguments(self) -> None:
        """Use the current ``gradient_accumulation_steps``, as transformers does: a callback may have changed them."""
        size = self.trainer.args.gradient_accumulation_steps
        if size != self.plan.gradient_accumulation_steps:
            if self.declarations is not None:
                self.declarations.declare(self.trainer.state.global_step, [f"accumulates {size} batches"])
            self.plan = replace(self.plan, gradient_accumulation_steps=size)
            self.core.lightning_trainer.accumulate_grad_batches = size

    def _choose_epoch_loader(self) -> tuple[Any, int, bool]:
        """Return the epoch's loader, its first step, and whether random states are restored after its first window.

        They are if the loader skips what an interrupted epoch has trained on. Never iterate the loader here: each
        ``iter(DataLoader)`` draws a seed from the global generator.
        """
        is_resumed = self.checkpoint is not None or self.resume_point != ResumePoint()
        if not is_resumed or self.epoch != self.resume_point.epoch:
            return self.loader, 0, False
        skip, num_examples = self.resume_point.num_batches_to_skip, self.resume_point.num_examples_to_skip
        if num_examples and (rest := skip_first_examples(self.loader, num_examples)) is not None:
            return rest, skip // self.plan.gradient_accumulation_steps, True
        if skip == 0:
            self._restore_rng_states()
            return self.loader, 0, False
        position = load_stream_position(self.checkpoint, self.loader, skip) if self.checkpoint is not None else None
        shows_progress = not self.trainer.args.disable_tqdm and self.trainer.is_local_process_zero()
        rest = skip_first_batches(self.loader, skip, position, shows_progress=shows_progress)
        return rest, skip // self.plan.gradient_accumulation_steps, True

    def position(self) -> tuple[int, int] | None:
        """Return the current epoch, and how many of its examples all processes have seen, if that is known."""
        point, size = self.resume_point, num_examples_in_round(self.loader)
        if size is None:
            return None
        if not has_length(self.loader) and getattr(self.epoch_loader, "end_of_dataloader", False):
            return self.epoch + 1, 0  # the stream has been read, and how long it was may be unknown
        if self.epoch == point.epoch and point.num_examples_to_skip is not None:
            num_batches = self.num_batches_seen - point.num_batches_to_skip
            return self.epoch, point.num_examples_to_skip + num_batches * size
        return self.epoch, self.num_batches_seen * size

    def save_position(self, folder: str) -> None:
        """Write what a resumed run needs to continue in the data."""
        if self.trainer.args.should_save:
            if (position := self.position()) is not None:
                save_position(folder, position)
            if self.epoch_start is not None:
                self.epoch_start.save(folder, self.epoch_loader)
        if self.trainer.args.process_index % self.trainer.accelerator.processes_per_batch == 0:
            save_stream_position(folder, self.epoch_loader, self.num_batches_seen)

    def _restore_rng_states(self) -> None:
        if self.rng_states is not None:
            set_rng_states(portable_rng_states(self.rng_states, as_arrays=True), self.trainer.args)
        else:
            self.trainer._load_rng_state(self.checkpoint)

    def _end_stream(self, update_step: int, num_batches: int) -> None:
        """Make a step of the batches left over at the end of a stream, if that is corrected."""
        corrections, size = self.core.corrections, self.plan.gradient_accumulation_steps
        corrections.warn(
            "stream_leftover",
            f"The last accumulation window of the stream has {num_batches} of {size} batches, and transformers adds "
            "their loss and gradients to the next step",
        )
        self.steps_on_leftover = "stream_leftover" in corrections
        if self.steps_on_leftover:
            lightning_compat.end_epoch_after(self.core.lightning_trainer, update_step * size + num_batches)

    def begin_batch(self, batch_idx: int) -> None:
        if self.states_written is not None:
            self._update_lightning_states()
        self.num_batches_seen = batch_idx + 1
        self._follow_arguments()
        self.makes_step = self.plan.ends_window(batch_idx) or (self.steps_on_leftover and self.closes_window)
        self.trainer.accelerator.gradient_state.sync_gradients = self.makes_step
        point = self.resume_point
        is_resumed_here = (self.epoch, batch_idx) == (point.epoch, point.num_batches_to_skip)
        if batch_idx % self.plan.gradient_accumulation_steps == 0 or is_resumed_here:
            self._fire("on_step_begin")

    def add_loss(self, loss: torch.Tensor, inputs: "Batch") -> None:
        """Add the loss of a batch whose backward pass is done, and count its operations and tokens."""
        trainer = self.trainer
        # A loss that is not finite counts as the mean loss since the last log (transformers, `_run_epoch`).
        if self.core.corrections.filters(loss, inputs):
            since_log = 1 + trainer.state.global_step - self.globalstep_last_logged
            self.tr_loss += self.tr_loss / since_log
        else:
            self.tr_loss += loss
        trainer.current_flos += float(trainer.floating_point_ops(inputs))  # type: ignore[assignment]  # as there
        trainer._track_num_input_tokens(inputs)
        self.step_to_count = None

    def prepare_optimizer_step(self) -> None:
        """Clip the gradients, note their norm and fire ``on_pre_optimizer_step``."""
        trainer = self.trainer
        if trainer.args.stop_on_nan:
            self.core.corrections.stop_if_diverged()
        self.grad_norm = self.core.clip_and_measure_gradients()
        self._fire("on_pre_optimizer_step")

    def finish_optimizer_step(self) -> None:
        self._fire("on_optimizer_step")
        # Before the scheduler moves: the logged learning rate is the rate of this step.
        # A callback of the user's `lightning.Trainer` may have replaced the scheduler.
        rate = self.trainer.optimizer.param_groups[0]["lr"] if self.is_lightnings else None
        self.learning_rate = self.trainer._get_learning_rate() if rate is None else float(rate)

    def end_batch(self, batch_idx: int) -> None:
        """End a batch; the last of a window ends a step, which may log, evaluate and save."""
        trainer = self.trainer
        if not self.makes_step:
            self._fire("on_substep_end")
            return
        # transformers 5.23 `_run_epoch` zeroes after the step, so callbacks of `on_step_end` see no gradients.
        self.model.zero_grad()
        trainer.state.global_step += 1
        trainer.state.epoch = self.epoch + (batch_idx + 1) / self.plan.steps_in_epoch
        self._fire("on_step_end")
        self._declare()
        self._log_save_evaluate()
        self._declare()
        if trainer.state.global_step == self.initial_global_step + 1:
            reserve_copies(self.core.checkpoint_parts())

    def end_epoch(self) -> None:
        """End the epoch; an epoch without a batch ends the run."""
        trainer = self.trainer
        if self.num_batches_seen == 0:
            logger.warning(
                "There seems not to be a single sample in your epoch_iterator, stopping training at step "
                f"{trainer.state.global_step}! This is expected if you're using an IterableDataset and set num_steps "
                f"({trainer.state.max_steps}) higher than the number of available samples. It was epoch {self.epoch}."
            )
            trainer.control.should_training_stop = True
        self._fire("on_epoch_end")
        self._declare("ends the epoch")
        self._log_save_evaluate(ends_epoch=True)
        self._declare()
        self._check_progress()

    def _check_progress(self) -> None:
        """Raise ``InputError`` for a stream too short for a single step, which would be iterated forever."""
        control, window = self.trainer.control, self.plan.gradient_accumulation_steps
        is_stopped = control.should_epoch_stop or control.should_training_stop
        made_no_step = (
            self.trainer.state.global_step == self.global_step_at_epoch_start and self.num_batches_seen < window
        )
        if made_no_step and not is_stopped and not has_length(self.loader):
            raise InputError(
                f"The training data yielded {self.num_batches_seen} batches in epoch {self.epoch}, fewer than the "
                f"{window} that make an optimizer step, so training would never end; set "
                "`gradient_accumulation_steps` or `per_device_train_batch_size` lower, or pass more data."
            )

    def finish(self) -> None:
        """Log the results, load the best model if configured, and fire ``on_train_end``."""
        self.share = None
        if self.states_written is not None:
            self._update_lightning_states()
        self.output = self.trainer._finalize_training(self.trial, self.plan.num_train_samples, self.start_time)

    def _log_save_evaluate(self, *, ends_epoch: bool = False) -> None:
        trainer = self.trainer
        if self.is_lightnings:
            trainer.control.should_evaluate = trainer.control.should_save = False
        elif self.is_trial:
            # Run every part once, regardless of the strategies.
            trainer.control.should_evaluate = ends_epoch and trainer.eval_dataset is not None
        trainer._maybe_log_save_evaluate(
            self.tr_loss,
            self.grad_norm,
            self.model_wrapped,
            self.trial,
            self.epoch,
            self.ignore_keys_for_eval,
            self.start_time,
            learning_rate=self.learning_rate,
        )

    def _declare(self, *actions: str) -> None:
        """Let the other processes know what this one does next, where all must do the same."""
        if self.declarations is None:
            return
        control = self.trainer.control
        flagged = [action for flag, action in _DECLARED.items() if getattr(control, flag)]
        self.declarations.declare(self.trainer.state.global_step, [*actions, *flagged])

    def _fire(self, event: str) -> None:
        trainer = self.trainer
        trainer.control = getattr(trainer.callback_handler, event)(trainer.args, trainer.state, trainer.control)


def _adds_to_checkpoints(callback: Callback) -> bool:
    hook = callback.on_save_checkpoint
    return getattr(hook, "__func__", hook) is not Callback.on_save_checkpoint


def fresh_state(trainer: "TrainerHooks") -> TrainerState:
    """Return the state of a run before its first step."""
    return TrainerState(
        epoch=0,
        is_local_process_zero=trainer.is_local_process_zero(),
        is_world_process_zero=trainer.is_world_process_zero(),
        stateful_callbacks=exportable_callbacks(trainer.callback_handler, trainer.control),
    )


def log_overridden_arguments(trainer: "TrainerHooks") -> None:
    """Log which training arguments are overridden by others, or by the kind of the training set."""
    args = trainer.args
    if args.max_steps > 0 and args.num_train_epochs > 0:
        logger.info("`max_steps` overrides `num_train_epochs`.")
    if isinstance(trainer.train_dataset, IterableDataset):
        logger.info(
            f"`train_sampling_strategy='{args.train_sampling_strategy}'` has no effect on a dataset without indices, "
            "which yields its examples in its own order."
        )


def log_training_start(
    trainer: "TrainerHooks", plan: RunPlan, resume_point: ResumePoint | None, *, batch_size: int
) -> None:
    """Log the counts of a training run, and where a resumed run continues."""
    args = trainer.args
    num_parameters = get_model_param_count(trainer.model_wrapped, trainable_only=True)
    lines = [
        "***** Running training *****",
        f"  Num examples = {plan.num_examples:,}",
        f"  Num Epochs = {plan.num_train_epochs:,}",
        f"  Num update steps per epoch = {plan.num_update_steps_per_epoch:,}",
        f"  Instantaneous batch size per device = {args.per_device_train_batch_size:,}",
        *([f"  Batch size of this run = {batch_size:,}"] if batch_size != args.per_device_train_batch_size else []),
        f"  Total train batch size (w. parallel, distributed & accumulation) = {plan.total_train_batch_size:,}",
        f"  Gradient Accumulation steps = {args.gradient_accumulation_steps}",
        f"  Total optimization steps = {plan.max_steps:,}",
        f"  Number of trainable parameters = {num_parameters:,}",
    ]
    if resume_point is not None:
        epoch, skipped = resume_point.epoch, resume_point.num_batches_to_skip
        lines.append(
            f"  Resuming training from checkpoint with epoch {epoch} and global step {trainer.state.global_step}"
        )
        if not args.ignore_data_skip:
            lines.append(f"  Skipping {epoch} epochs and {skipped} batches that the checkpoint has seen")
    for line in lines:
        logger.info(line)


def find_averaging_callbacks(callbacks: Sequence[Callback]) -> list[WeightAveraging]:
    """Return the callbacks that average weights: they run before the event bridge, which evaluates and saves."""
    return [callback for callback in callbacks if isinstance(callback, WeightAveraging)]


def build_lightning_trainer(
    args: "TrainingArguments",
    *,
    plan: RunPlan | None = None,
    model: nn.Module | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    plugins: Sequence[Any] = (),
    further: Mapping[str, Any] = MappingProxyType({}),
) -> pl.Trainer:
    """Return a ``lightning.Trainer`` that only runs the loops; without a ``plan`` it only evaluates.

    The event bridge is the first of ``callbacks``: it must see an epoch before a ``ModelCheckpoint`` does. ``further``
    are the user's arguments, as checked by :func:`~portico.loop.validation.check_lightning_kwargs`.
    """
    options: dict[str, Any] = {
        # A sanity check runs the evaluation loader, which takes time, and reads a stream from its start.
        "num_sanity_val_steps": 0,
        "enable_model_summary": False,
        **{name: value for name, value in further.items() if value is not None},
    }
    placement = resolve_run_placement(args, model)
    if args.precision is None and any(isinstance(plugin, Precision) for plugin in plugins):
        # Lightning accepts only one of the two.
        del placement["precision"]
    with lightning_compat.quiet_lightning(), _naming(further):
        pl_trainer = pl.Trainer(
            **placement,
            callbacks=list(callbacks),
            logger=list(loggers) or False,
            plugins=cluster_plugins(args, plugins) or None,
            default_root_dir=args.output_dir,
            # The plan counts the steps and the bridge stops the run; with limits Lightning would validate or stop at
            # other steps.
            max_steps=-1,
            max_epochs=plan.num_train_epochs if plan else 1,
            accumulate_grad_batches=args.gradient_accumulation_steps if plan else 1,
            check_val_every_n_epoch=sys.maxsize,
            log_every_n_steps=_resolve_logging_steps(args, plan),
            use_distributed_sampler=False,
            # User hooks may keep tensors of an evaluation and run backward on them later.
            inference_mode=False,
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
            enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
            **options,
        )
    use_lean_loops(pl_trainer)
    if lightning_compat.is_fast_dev_run(pl_trainer):
        # Lightning would end the run by batches, and validate at its end.
        pl_trainer.fit_loop.epoch_loop.max_steps, pl_trainer.check_val_every_n_epoch = -1, sys.maxsize
    lightning_compat.keep_loss_scale(pl_trainer)
    lightning_compat.end_loops_with_the_data(pl_trainer)
    lightning_compat.resume_when_told(pl_trainer)
    if is_in_worker():
        lightning_compat.drop_launcher(pl_trainer.strategy)
    if args.enable_jit_checkpoint:
        disable_sigterm_handler(pl_trainer)
    else:
        stop_between_batches(pl_trainer, on_sigterm=kill_children)
    return pl_trainer


@contextmanager
def _naming(further: Mapping[str, object]) -> Iterator[None]:
    """Name the user's arguments of ``lightning.Trainer`` when it fails on one of them."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # Lightning checks few of its arguments; the others fail where they are used
        given = ", ".join(f"{name}={value!r}" for name, value in further.items() if value is not None)
        if not given:
            raise
        raise InputError(
            f"`lightning.Trainer` cannot be made with {given} ({' '.join(str(error).split())}); give values that its "
            "documentation allows in `lightning_kwargs`."
        ) from error


def _resolve_logging_steps(args: "TrainingArguments", plan: RunPlan | None) -> int:
    """Return the number of steps between logs of Lightning's callbacks: the same as the trainer's."""
    steps = args.logging_steps
    if plan is None or args.logging_strategy != "steps":
        return 1
    return max(math.ceil(plan.max_steps * steps if steps < 1 else steps), 1)


def fit(pl_trainer: pl.Trainer, module: "TrainerModule", datamodule: pl.LightningDataModule) -> None:
    """Let Lightning run a training; an interrupt or SIGTERM ends it as it would end a plain script.

    Raises:
        KeyboardInterrupt: If the user interrupts the run.
        SystemExit: If the process receives SIGTERM.
    """
    strategy = pl_trainer.strategy
    run = module.run
    try:
        with (
            kill_children_on_error(),
            lightning_compat.quiet_lightning(),
            autocast_forward(module.model, strategy),
            ending_plainly(pl_trainer),
        ):
            begin_call(strategy, f"train() of {run.plan.max_steps} steps")
            watching = nullcontext() if run.declarations is None else run.declarations.watching()
            with watching, lightning_compat.averaging(pl_trainer):
                pl_trainer.fit(module, datamodule=datamodule)
                if run.output is None and lightning_compat.was_skipped(pl_trainer):
                    # The checkpoint was at the end of the run, where the model has the average.
                    for callback in find_averaging_callbacks(pl_trainer.callbacks):  # type: ignore[attr-defined]
                        callback.on_train_end(pl_trainer, module)
    except lightning_compat.SteeringError as error:
        raise error.original from None  # as under transformers
    is_over = run.output is not None or run.next_batch_size is not None
    if not is_over and not lightning_compat.was_skipped(pl_trainer):
        raise RuntimeError(
            "The training ended before its first step: a Lightning callback raised the exception by which Lightning's "
            "tuner ends a fit; leave the callback out."
        )
