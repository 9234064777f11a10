"""One training of an AllenNLP trainer: its progress, its order of events, and the Hugging Face loop underneath.

The order of events; ``<...>`` marks AllenNLP's callbacks, ``[...]`` Hugging Face's, ``n`` is the number of
the optimizer step, from 1::

    train():
        restore the latest checkpoint
        [on_train_begin]
        <on_start> <epoch callbacks, epoch -1>
        for each epoch:
            [on_epoch_begin]
            measure memory
            for each group of num_gradient_accumulation_steps batches:      # the last one may be smaller
                [on_step_begin]
                for each batch of the group:
                    loss = (outputs["loss"] + penalty) / batches in the group     # ValueError if it is NaN
                    <on_backward> or loss.backward()
                rescale the gradients to grad_norm, then clip them to grad_clipping
                schedulers.step_batch(n)                  # the rates apply to this step already
                [on_pre_optimizer_step]
                optimizer.step()
                [on_optimizer_step]
                moving_average.apply(n)
                write to TensorBoard
                <on_batch> <batch callbacks>              # the gradients are still there
                zero the gradients
                [on_step_end]
                save a checkpoint, if one is due
            [on_epoch_end]
            for each validation batch, with the moving averages as weights:
                <on_batch> <batch callbacks>
                [on_prediction_step]
            [on_evaluate]
            track the metric; write metrics_epoch_N.json, TensorBoard and loggers
            schedulers.step(metric)
            <on_epoch> <epoch callbacks>
            save a checkpoint, if one is due; keep the weights, if they are the best
            stop, if the patience is exhausted
        [on_train_end]
        load the best weights; write metrics.json
        <on_end> <end callbacks>                          # also after an error
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import transformers
from torch import nn
from typing_extensions import override

from portico.arguments import TrainingArguments
from portico.checkpoint.resume import set_rng_states
from portico.checkpoint.writer import exportable_callbacks
from portico.compat.lightning import continue_from, end_epoch_after
from portico.compat.transformers import EvalLoopOutput, TrainOutput, denumpify_detensorize
from portico.gradient_descent.arguments import check_world_size
from portico.gradient_descent.batches import (
    count_epochs,
    random_states,
    set_epoch,
    set_random_states,
    share_batches,
    steps_per_epoch,
)
from portico.gradient_descent.checkpointer import TrainerCheckpoint
from portico.gradient_descent.construction import ConfigurationError
from portico.gradient_descent.metrics import LossSums, collect_metrics, epoch_metrics, gpu_memory_mb, peak_memory_mb
from portico.loop.core import TrainerCore
from portico.loop.evaluation import EvaluationSession
from portico.loop.model_setup import prepared_for_training
from portico.loop.plan import ResumePoint
from portico.loop.run import TrainingRun, fresh_state
from portico.loop.validation import check_strategy_of_training
from portico.trainer import Trainer

if TYPE_CHECKING:
    from portico.compat.annotations import Batch, EvalExamples, Loader, Trial
    from portico.gradient_descent.trainer import GradientDescentTrainer

logger = logging.getLogger(__name__)

_VERSION = 1
_STATEFUL = ("learning_rate_scheduler", "momentum_scheduler", "moving_average")
# What Hugging Face's trainer does in these places, AllenNLP's rules do instead.
PARTS_TURNED_OFF: dict[str, Any] = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "max_grad_norm": 0.0,
    "remove_unused_columns": False,
    "logging_nan_inf_filter": False,
}


@dataclass
class Progress:
    """How far a training has come; AllenNLP calls optimizer steps batches."""

    epochs_completed: int = 0
    """Whole epochs."""
    batches_in_epoch_completed: int = 0
    """Optimizer steps of the current epoch."""
    total_batches: int = 0
    """Optimizer steps of the training, including the current one."""
    sums: LossSums = field(default_factory=LossSums)
    """Losses of the current epoch."""
    epoch_start: dict[str, Any] | None = None
    """Random states at the start of the current epoch."""

    def complete_epoch(self) -> None:
        self.epochs_completed += 1
        self.batches_in_epoch_completed = 0
        self.epoch_start = None

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, which are the same in every process."""
        return {
            "epochs_completed": self.epochs_completed,
            "batches_in_epoch_completed": self.batches_in_epoch_completed,
            "batch_num_total": self.total_batches,
        }

    def state_of_process(self) -> dict[str, Any]:
        """Return what differs between processes."""
        return {
            "sums": asdict(self.sums),
            "epoch_start": self.epoch_start if self.batches_in_epoch_completed else None,
        }

    def load_state_dict(self, state: dict[str, Any], of_process: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` and :meth:`state_of_process` returned."""
        self.epochs_completed = state["epochs_completed"]
        self.batches_in_epoch_completed = state["batches_in_epoch_completed"]
        self.total_batches = state["batch_num_total"]
        self.sums = LossSums(**of_process["sums"])
        self.epoch_start = of_process["epoch_start"]


class DescentRun(TrainingRun):
    """One ``train()`` of an AllenNLP trainer, in the order of events that the module describes."""

    def __init__(self, trainer: "LoopTrainer", **options: Any) -> None:
        super().__init__(cast("Any", trainer), **options)
        self.gd_trainer = trainer.gd_trainer
        self.group: list[Any] = []
        self.outputs: list[dict[str, Any]] = []
        self.memory: dict[str, float] = {}
        self.window_end = 0  # batches of the epoch up to the end of the current accumulation window

    @override
    def restore(self) -> None:
        # The checkpoint was read before the run was made.
        if self.gd_trainer.restored is not None:
            load_callback_states(self.gd_trainer, "lightning", self.gd_trainer.restored["callbacks"])
        if self.trainer.state.global_step > 0:
            continue_from(
                self.trainer._portico.lightning_trainer,
                epoch=self.resume_point.epoch,
                num_batches_done=self.resume_point.num_batches_to_skip,
                batches_per_epoch=self.plan.steps_in_epoch,
                steps=self.trainer.state.global_step,
            )

    @override
    def begin(self) -> None:
        super().begin()
        self.gd_trainer.begin()

    @override
    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        if self._num_skipped(epoch) == 0:
            self.gd_trainer.progress.batches_in_epoch_completed = 0
            self.gd_trainer.progress.sums = LossSums()
        workers = peak_memory_mb(self.gd_trainer.accelerator)
        self.memory = {f"worker_{rank}_memory_MB": peak for rank, peak in workers.items()}
        self.memory |= {f"gpu_{index}_memory_MB": peak for index, peak in gpu_memory_mb().items()}

    @override
    def batches(self) -> Iterator[Any]:
        trainer = self.trainer
        plan = self.plan
        batches = self._open_epoch()
        # The last group of an epoch may be smaller; without a length it cannot be known beforehand.
        self.steps_on_leftover = True
        while group := list(islice(batches, plan.gradient_accumulation_steps)):
            self.window_end += len(group)
            if len(group) < plan.gradient_accumulation_steps and plan.steps_in_epoch == sys.maxsize:
                # Lightning steps at the last batch of an epoch, which it cannot know without a length.
                end_epoch_after(trainer._portico.lightning_trainer, self.window_end)
            trainer.current_gradient_accumulation_steps = len(group)
            self.group = group
            for position, batch in enumerate(group, start=1):
                self.closes_window = position == len(group)
                yield batch
                if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                    return

    @override
    def begin_batch(self, batch_idx: int) -> None:
        super().begin_batch(batch_idx)
        if batch_idx == self.window_end - len(self.group):
            self.gd_trainer.progress.total_batches += 1
            self.gd_trainer.progress.sums.begin_batch()
            self.outputs = []

    def collect(self, outputs: dict[str, Any]) -> None:
        """Keep what the model returned for a batch of the current step."""
        self.outputs.append(outputs)
        self.gd_trainer.progress.sums.add(outputs, len(self.group))

    @override
    def prepare_optimizer_step(self) -> None:
        # AllenNLP 2's order: the norm first, then the values, once per step.
        self.grad_norm = self.gd_trainer.rescale_gradients()
        self.gd_trainer.clip_gradient()
        self.step_schedulers()
        self._fire("on_pre_optimizer_step")
        self._weights_before = self._weights_to_compare()

    def step_schedulers(self) -> None:
        for scheduler in self.gd_trainer.schedulers:
            scheduler.step_batch(self.gd_trainer.progress.total_batches)

    @override
    def finish_optimizer_step(self) -> None:
        super().finish_optimizer_step()
        gd_trainer = self.gd_trainer
        progress = gd_trainer.progress
        if gd_trainer.moving_average is not None:
            gd_trainer.moving_average.apply(progress.total_batches)
        progress.batches_in_epoch_completed += 1
        progress.sums.end_batch()
        metrics = collect_metrics(gd_trainer.model, progress.sums)
        writer = gd_trainer.tensorboard_writer
        if writer is not None and gd_trainer.is_primary:
            model = gd_trainer.model
            updates = None
            if (before := self._weights_before) is not None:
                updates = {name: before[name] - weight.detach().cpu() for name, weight in model.named_parameters()}
            writer.log_batch(model, gd_trainer.optimizer, self.grad_norm, metrics, self.group, updates)
        gd_trainer.batch_callbacks(
            batch_inputs=self.group,
            batch_outputs=self.outputs,
            batch_metrics=metrics,
            epoch=self.epoch,
            batch_number=progress.batches_in_epoch_completed,
            is_training=True,
            batch_grad_norm=self.grad_norm,
        )

    @override
    def end_batch(self, batch_idx: int) -> None:
        super().end_batch(batch_idx)
        if self.makes_step:
            self.gd_trainer.maybe_save_checkpoint()

    @override
    def end_epoch(self) -> None:
        super().end_epoch()
        self.gd_trainer.complete_epoch(self.epoch, self.memory)
        if self.gd_trainer.metric_tracker.should_stop_early():
            self.trainer.control.should_training_stop = True

    def _num_skipped(self, epoch: int) -> int:
        return self.resume_point.num_batches_to_skip if epoch == self.resume_point.epoch else 0

    def _open_epoch(self) -> Iterator[Any]:
        """Return the batches of the epoch that are left.

        To resume within an epoch, the batches before are fetched again with the random states of its start, so that
        loader, samplers and dataset reach the same state; then the random states of the checkpoint are restored.
        """
        # The user's loader has the generators; the run may iterate a share of it.
        loader = self.gd_trainer.data_loader
        args = self.trainer.args
        set_epoch(loader, self.epoch)
        num_skipped = self._num_skipped(self.epoch)
        restored = self.gd_trainer.restored
        if restored is not None and self.epoch == self.resume_point.epoch:
            set_random_states(restored["epoch_start" if num_skipped else "random_states"], loader, args)
        self.gd_trainer.progress.epoch_start = random_states(loader, args)
        batches = iter(self.loader)
        if num_skipped:
            num_fetched = sum(1 for _ in islice(batches, num_skipped))
            if num_fetched < num_skipped:
                raise ConfigurationError(
                    f"The checkpoint was written after batch {num_skipped} of an epoch, but `data_loader` yields only "
                    f"{num_fetched}; use the loader that the training began with, or another `serialization_dir`."
                )
            assert restored is not None, "only a resumed run skips batches"
            set_rng_states(restored["random_states"]["global"], args)
        self.window_end = num_skipped
        return batches

    def _weights_to_compare(self) -> dict[str, torch.Tensor] | None:
        writer = self.gd_trainer.tensorboard_writer
        if writer is None or not self.gd_trainer.is_primary or not writer.should_log_histograms_this_batch():
            return None
        return {name: weight.detach().cpu().clone() for name, weight in self.gd_trainer.model.named_parameters()}


class ValidationSession(EvaluationSession):
    """One pass over the validation data, with AllenNLP's metrics and callbacks; the model counts its own metrics.

    ``metrics`` is complete when the pass is.
    """

    def __init__(self, trainer: "LoopTrainer", loader: "Loader", **options: Any) -> None:
        super().__init__(cast("Any", trainer), loader, **options)
        self.gd_trainer = trainer.gd_trainer
        self.sums = LossSums()
        self.metrics: dict[str, Any] = {}

    @override
    def step(self, inputs: "Batch", batch_idx: int) -> None:
        trainer = self.trainer
        gd_trainer = self.gd_trainer
        with torch.no_grad(), trainer.accelerator.autocast():
            outputs = gd_trainer.batch_outputs(inputs, for_training=False)
        self.num_observed_examples += 1
        # As in AllenNLP, only batches with a loss count.
        if outputs.get("loss") is not None:
            self.sums.begin_batch()
            self.sums.add(outputs)
            self.sums.end_batch()
        gd_trainer.batch_callbacks(
            batch_inputs=[inputs],
            batch_outputs=[outputs],
            batch_metrics=collect_metrics(gd_trainer.model, self.sums),
            epoch=gd_trainer.progress.epochs_completed,
            batch_number=self.sums.num_batches,
            is_training=False,
            batch_grad_norm=None,
        )
        trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)

    @override
    def finish(self) -> EvalLoopOutput:
        self.metrics = epoch_metrics(self.gd_trainer.model, self.sums, self.trainer.accelerator)
        prefixed = self._add_prefix(denumpify_detensorize(dict(self.metrics)))
        self.output = EvalLoopOutput(
            predictions=np.empty(0), label_ids=None, metrics=prefixed, num_samples=self.num_observed_examples
        )
        return self.output


class LoopCore(TrainerCore):
    """Seeds, differentiates and evaluates as AllenNLP does."""

    trainer: "LoopTrainer"

    def seed_everything(self) -> None:
        """Do nothing: AllenNLP seeds in its command, not in its trainer."""

    @property
    def runs_backward_in_step(self) -> bool:
        return bool(self.trainer.gd_trainer.backward_callbacks)

    def backward_at_once(self, loss: torch.Tensor, **kwargs: Any) -> None:
        if not self.trainer.gd_trainer.backward_by_callbacks(cast(DescentRun, self.module.run).outputs[-1]):
            super().backward_at_once(loss, **kwargs)

    def evaluation_session(self, dataloader: "Loader", **options: Any) -> EvaluationSession:
        self.trainer.validation = self.trainer.session_class(self.trainer, dataloader, **options)
        return self.trainer.validation


class LoopTrainer(Trainer, core=LoopCore):
    """The Hugging Face trainer under an AllenNLP trainer: it runs the batches through Lightning.

    ``args`` must contain ``PARTS_TURNED_OFF``; ``parts`` are callbacks, loggers and plugins.
    """

    loss_is_scaled_for_ga = False
    run_class: type[DescentRun] = DescentRun
    session_class: type[ValidationSession] = ValidationSession

    def __init__(self, gd_trainer: "GradientDescentTrainer", args: TrainingArguments, **parts: Any) -> None:
        self.gd_trainer = gd_trainer
        self.validation: ValidationSession | None = None
        check_world_size(gd_trainer.world_size, args.world_size, distributed=gd_trainer.is_distributed)
        super().__init__(model=gd_trainer.model, args=args, optimizers=(gd_trainer.optimizer, None), **parts)
        # AllenNLP's models return means, which are not divided by a number of items.
        self.model_accepts_loss_kwargs = False

    # ---- Data ----

    @override
    def get_train_dataloader(self) -> Any:
        return share_batches(self.gd_trainer.data_loader, self.args)

    @override
    def get_eval_dataloader(self, eval_dataset: "str | EvalExamples | None" = None) -> Any:
        loader = self.gd_trainer.validation_data_loader if eval_dataset is None else eval_dataset
        if loader is None:
            raise ConfigurationError(
                "Validation results cannot be calculated without a `validation_data_loader`; pass one to the trainer."
            )
        return share_batches(loader, self.args)

    # ---- Steps ----

    def run_model(self, inputs: "Batch", *, for_training: bool) -> dict[str, Any]:
        """Run the model on inputs that are on its device; ``for_training`` if a backward pass follows."""
        return self.model_wrapped(**inputs)

    @override
    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        # AllenNLP's schedulers are stepped by the run.
        return None

    @override
    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        outputs = self.gd_trainer.batch_outputs(inputs, for_training=True)
        loss = outputs["loss"]
        if torch.isnan(loss):
            raise ValueError("nan loss encountered; lower the learning rate, or set `grad_norm` or `grad_clipping`.")
        cast(DescentRun, self._portico.module.run).collect(outputs)
        return (loss, outputs) if return_outputs else loss

    # ---- Evaluation ----

    @override
    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        with self.gd_trainer.averaged_weights():
            return super().evaluation_loop(*args, **kwargs)

    # ---- A run ----

    @override
    def train(self, *args: object, **kwargs: object) -> TrainOutput:
        # The AllenNLP trainer has read its checkpoint.
        strategy, core = self._portico.lightning_trainer.strategy, self._portico
        check_strategy_of_training(self.args, strategy, runs_backward_in_step=core.runs_backward_in_step)
        self.is_in_train = True
        try:
            with prepared_for_training(self.model, self.args, self.args.neftune_noise_alpha):
                return self._portico.run_training(self._make_run())
        finally:
            self.is_in_train = False

    def _make_run(self) -> DescentRun:
        loader = self.get_train_dataloader()
        progress = self.gd_trainer.progress
        # A run whose patience was used up has nothing left to train; AllenNLP trains one more epoch at each start.
        is_over = self.gd_trainer.metric_tracker.should_stop_early() and progress.batches_in_epoch_completed == 0
        plan = count_epochs(
            loader,
            num_epochs=progress.epochs_completed if is_over else self.gd_trainer.num_epochs,
            num_gradient_accumulation_steps=self.args.gradient_accumulation_steps,
            world_size=self.args.world_size,
        )
        self._trial = None
        self.state = fresh_state(cast("Any", self))
        self.state.compute_steps(self.args, plan.max_steps)
        self.state.global_step = progress.total_batches
        self.state.init_training_references(self, plan.max_steps, plan.num_train_epochs, None)
        self.callback_handler.train_dataloader = loader
        num_done = progress.batches_in_epoch_completed * plan.gradient_accumulation_steps
        resume_point = ResumePoint(progress.epochs_completed, min(num_done, plan.steps_in_epoch))
        return self.run_class(self, loader=loader, plan=plan, resume_point=resume_point)

    def _save_checkpoint(self, model: nn.Module, trial: "Trial", metrics: dict[str, float] | None = None) -> None:
        """Write an AllenNLP checkpoint when a Hugging Face callback requests one."""
        self.gd_trainer.save_checkpoint()


# ---- Recovery ----


def capture_training(trainer: "GradientDescentTrainer") -> dict[str, Any]:
    """Return everything but the weights that ``trainer`` needs to resume as if it had never stopped.

    While the moving averages are assigned, their state contains the trained weights.
    """
    loop = trainer.loop
    random = random_states(trainer.data_loader, loop.args)
    of_process = {"random_states": random, **trainer.progress.state_of_process()}
    if trainer.progress.batches_in_epoch_completed > 0:
        of_process["model_metrics"] = trainer.model_metrics.state_dict()
    report = getattr(trainer, "report", None)  # there is none before `train()`
    state = {
        "version": _VERSION,
        "metric_tracker": trainer.metric_tracker.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "data": _data_counts(trainer),
        # Plain numbers, because checkpoints are loaded with `weights_only=True`.
        "metrics": {} if report is None else denumpify_detensorize(report.metrics),
        "processes": trainer.accelerator.gather_object([of_process]),
        "callbacks": {
            library: {
                name: callback.state()["attributes"] if library == "hugging_face" else callback.state_dict()
                for name, callback in _stateful_callbacks(trainer, library).items()
            }
            for library in ("allennlp", "hugging_face", "lightning")
        },
        **trainer.progress.state_dict(),
    }
    optional = {name: getattr(trainer, name) for name in _STATEFUL} | {"scaler": loop.accelerator.scaler}
    return state | {name: part.state_dict() for name, part in optional.items() if part is not None}


def restore_training(trainer: "GradientDescentTrainer", checkpoint: TrainerCheckpoint) -> None:
    """Restore ``trainer`` from ``checkpoint``; refuse one of another training, and change nothing."""
    model_state, state = checkpoint
    reason = _why_not(trainer, model_state, state)
    if reason is not None:
        raise ConfigurationError(
            f"Could not recover training from the checkpoint in {trainer.serialization_dir}: {reason}. Did you mean "
            "to output to a different serialization directory or delete the existing serialization directory?"
        )
    trainer.model.load_state_dict(model_state)
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.metric_tracker.load_state_dict(state["metric_tracker"])
    # A run that resumes with more processes than before has no states for the new ones.
    of_process = state["processes"][trainer.loop.args.process_index % len(state["processes"])]
    trainer.progress.load_state_dict(state, of_process)
    for name in _STATEFUL:
        if name in state:
            getattr(trainer, name).load_state_dict(state[name])
    if trainer.moving_average is not None:
        # The model's state holds the averages, the backups are the trained weights.
        trainer.moving_average.restore()
    load_callback_states(trainer, "allennlp", state["callbacks"])
    load_callback_states(trainer, "hugging_face", state["callbacks"])
    # The run restores Lightning's callbacks once they are set up, the scaler once there is one.
    trainer.restored = {
        "callbacks": state["callbacks"],
        "scaler": state.get("scaler"),
        "metrics": state.get("metrics", {}),
        **of_process,
    }


def load_callback_states(
    trainer: "GradientDescentTrainer", library: str, states: Mapping[str, Mapping[str, Any]]
) -> None:
    """Restore the states of the callbacks of one library; Lightning's must be set up, to know their folders."""
    callbacks = _stateful_callbacks(trainer, library)
    unknown = [name for name in states[library] if name not in callbacks]
    if unknown:
        logger.warning(
            "The checkpoint holds states of callbacks that this training does not have: %s.", ", ".join(unknown)
        )
    for name, state in states[library].items():
        if name in unknown:
            continue
        if library == "hugging_face":
            vars(callbacks[name]).update(state)
        else:
            callbacks[name].load_state_dict(state)


def _why_not(
    trainer: "GradientDescentTrainer", model_state: Mapping[str, Any], state: Mapping[str, Any]
) -> str | None:
    """Return how the checkpoint differs from the current training, if it does."""
    if state.get("version") != _VERSION:
        return f"its format is version {state.get('version')} instead of {_VERSION}"
    # The extra state of a module need not be a tensor.
    current, saved = (
        {(name, getattr(value, "shape", None)) for name, value in weights.items()}
        for weights in (trainer.model.state_dict(), model_state)
    )
    if different := sorted({name for name, _ in current ^ saved}):
        return f"its model has other weights ({', '.join(different[:3])})"
    groups, saved_groups = (each["param_groups"] for each in (trainer.optimizer.state_dict(), state["optimizer"]))
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in saved_groups]:
        return "its optimizer has other parameter groups"
    for name in _STATEFUL:
        if (name in state) != (getattr(trainer, name) is not None):
            return f"it was written {'with' if name in state else 'without'} a `{name}`"
    if _data_counts(trainer) != state["data"]:
        return f"it was written with the data counts {state['data']}, which are now {_data_counts(trainer)}"
    return None


def _data_counts(trainer: "GradientDescentTrainer") -> dict[str, int | None]:
    group = trainer.num_gradient_accumulation_steps
    return {
        "num_steps_per_epoch": steps_per_epoch(trainer.data_loader, group),
        "num_gradient_accumulation_steps": group,
    }


def _stateful_callbacks(trainer: "GradientDescentTrainer", library: str) -> dict[str, Any]:
    """Return the callbacks of a library by the names of their classes; further callbacks of a class are numbered."""
    candidates: Iterable[Any] = {
        "allennlp": [callback for callback in trainer.own_callbacks if hasattr(callback, "state_dict")],
        "hugging_face": [
            part
            for part in exportable_callbacks(trainer.loop.callback_handler, trainer.loop.control)
            if isinstance(part, transformers.TrainerCallback)
        ],
        "lightning": trainer.loop._portico.lightning_parts["callbacks"],
    }[library]
    named: dict[str, Any] = {}
    for callback in candidates:
        name = type(callback).__qualname__
        same = sum(known.partition(" ")[0] == name for known in named)
        named[f"{name} {same + 1}" if same else name] = callback
    return named
