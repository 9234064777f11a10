"""``TrainerCore``: what the loop does with a trainer beyond the methods that Hugging Face's trainer has.

A subclass of :class:`~portico.trainer.Trainer` may define any method that ``transformers.Trainer`` does not have: the
trainer calls methods of its core, and the core calls only hooks of transformers on the trainer. Trainers of another
backend replace parts of the core in a subclass of it.

Which object holds which; each arrow is an attribute::

    Trainer --_portico--> TrainerCore --lightning_trainer--> lightning.Trainer, a new one for each run
                                   --module, datamodule--> TrainerModule, TrainerDataModule --run--> TrainingRun

The core and the run refer to the trainer as ``trainer``, the modules as ``hf_trainer``.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ProgressBar
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    enable_full_determinism,
    set_seed,
)

from portico.arguments import metric_key
from portico.checkpoint import weights, writer
from portico.checkpoint.background import BackgroundWriter
from portico.checkpoint.manifest import STATE_FILE
from portico.compat import transformers as hf_compat
from portico.compat.lightning import averaged_weights, launches_workers
from portico.compat.transformers import EvalLoopOutput, TrainOutput, logger
from portico.data.loaders import get_user_batch_size
from portico.distributed.deepspeed import EngineStrategy
from portico.distributed.precision import autocast_forward, full_evaluation_dtype
from portico.distributed.processes import connect
from portico.distributed.strategies import refuse_own_backward
from portico.errors import InputError, InputKeyError, InputTypeError
from portico.loop import model_setup, optim
from portico.loop.corrections import Corrections
from portico.loop.datamodule import TrainerDataModule
from portico.loop.evaluation import EvaluationSession
from portico.loop.failures import explain_call, explain_failure
from portico.loop.metrics import check_metrics, plain_values
from portico.loop.module import TrainerModule
from portico.loop.overrides import INSTEAD
from portico.loop.plain_trainer import PlainTrainerBridge
from portico.loop.plan import ResumePoint, RunPlan
from portico.loop.run import (
    EventBridge,
    TrainingRun,
    build_lightning_trainer,
    find_averaging_callbacks,
    fit,
    fresh_state,
    log_training_start,
)
from portico.loop.validation import (
    check_best_metric,
    check_collator,
    check_examples,
    check_loss_function,
    check_optimizers,
    check_strategy_of_training,
    refuse_cast_of_shards,
    refuse_empty,
    refuse_unsavable,
    refuse_untrainable,
    refuse_untrainable_quantized,
)
from portico.trust.disk import replaced

if TYPE_CHECKING:
    from portico.compat.annotations import (
        Batch,
        Callbacks,
        DataCollator,
        EvalExamples,
        Examples,
        Loader,
        Nested,
        NumItems,
        ProcessingClass,
        Scheduler,
        Trial,
    )

# Methods of a subclass that may read the optimizer in a way that only it knows.
_MAKERS_OF_OPTIMIZERS = (
    "create_optimizer",
    "create_optimizer_and_scheduler",
    "create_scheduler",
    "get_optimizer_cls_and_kwargs",
)
# The constructor's names for the data that a loader is made of.
_DATA_ARGUMENTS = {"training": "train_dataset", "evaluation": "eval_dataset"}


class TrainerCore:
    """The parts of one trainer that are not Hugging Face's, and what the loop does with them.

    Attributes:
        trainer: The trainer that has this core.
        module, datamodule, lightning_trainer, corrections: As the trainer's attributes of these names.
        background: Writes checkpoints in the background.
        lightning_parts: Lightning's callbacks, loggers and plugins that the user gave.
        lightning_kwargs: Further arguments of each ``lightning.Trainer``.
        last_checkpoint: Folder of the checkpoint written last.
        trial: Trial of a search that is being trained.
    """

    # Attributes of the trainer that a worker process returns to the script that called `train()`.
    carried_from_workers: tuple[str, ...] = ("state", "control", "model_preparation_time")
    # Whether metrics get what the model returns, and not what post-processing makes of it.
    scores_logits = True
    module: TrainerModule
    datamodule: TrainerDataModule

    def __init__(self, trainer: Any, lightning_kwargs: Mapping[str, Any], **lightning_parts: list[Any]) -> None:
        self.trainer = trainer
        self.lightning_kwargs, self.lightning_parts = lightning_kwargs, lightning_parts
        self.lightning_trainer: Any = None
        self.corrections = Corrections(trainer)
        self.background = BackgroundWriter()
        self.last_checkpoint: Path | None = None
        self.trial: Trial = None
        self._trained_shapes: dict[str, torch.Size] = {}  # of the parameters, in the last training

    # ---- Setting up ----

    def seed_everything(self) -> None:
        trainer = self.trainer
        if trainer.args.full_determinism:
            enable_full_determinism(trainer.args.seed)
        else:
            set_seed(trainer.args.seed)

    def adopt_model(self, model: nn.Module | None, model_init: Callable[..., nn.Module] | None) -> None:
        trainer = self.trainer
        trainer.model_init = model_init
        trainer.model = trainer.call_model_init() if model is None else model
        refuse_untrainable_quantized(trainer.model)
        trainer.is_model_parallel = model_setup.has_device_map(trainer.model, trainer.args.device)
        strategy = self.lightning_trainer.strategy
        is_whole = not (trainer.is_model_parallel or getattr(strategy, "places_model", False))
        placed = trainer.args.place_model_on_device
        trainer.place_model_on_device = is_whole if placed is None else placed
        # An evaluation in half precision casts the model first, which halves the bytes to move.
        if full_evaluation_dtype(trainer.args) is None:
            self.move_model_to_its_device()
        trainer.model_wrapped = trainer.model
        # Below PEFT's adapters, whose signature and class name say nothing about labels.
        base, unwrapped = map(
            hf_compat.unwrap_peft_model, (trainer.model, trainer.accelerator.unwrap_model(trainer.model))
        )
        given = trainer.args.label_names
        trainer.label_names = hf_compat.find_labels(type(base)) if given is None else given
        trainer.can_return_loss = bool(hf_compat.can_return_loss(type(base)))
        trainer.model_accepts_loss_kwargs = hf_compat.accepts_loss_kwargs(unwrapped)
        trainer._loss_shifts_labels = model_setup.loss_shifts_labels(base)
        trainer.label_smoother = model_setup.label_smoother(trainer.args, trainer.model)
        self.module = TrainerModule(trainer.model, trainer)

    def adopt_data(
        self,
        data_collator: "DataCollator | None",
        train_dataset: "Examples | None",
        eval_dataset: "EvalExamples | None",
        processing_class: "ProcessingClass | None",
    ) -> None:
        trainer = self.trainer
        trainer.data_collator = (
            model_setup.default_collator(processing_class) if data_collator is None else data_collator
        )
        trainer.processing_class = processing_class
        self.datamodule = TrainerDataModule(trainer)
        trainer.train_dataset = self.datamodule.adopt(train_dataset, "training")
        trainer.eval_dataset = self.datamodule.adopt(eval_dataset, "evaluation")

    def start_callbacks(self, callbacks: "Callbacks | None") -> None:
        trainer = self.trainer
        every = [*model_setup.default_callbacks(trainer), *(callbacks or [])]
        trainer.callback_handler = hf_compat.CallbackHandler(
            every, trainer.model, trainer.processing_class, trainer.optimizer, trainer.lr_scheduler
        )
        if trainer.args.disable_tqdm:
            trainer.add_callback(PrinterCallback)
        elif not any(isinstance(callback, ProgressBar) for callback in self.lightning_parts["callbacks"]):
            trainer.add_callback(model_setup.progress_callback())
        if trainer.args.push_to_hub:
            trainer.init_hf_repo()
        if trainer.args.should_save:
            writer.make_run_folder(trainer.args.output_dir)
        trainer.control = TrainerControl()
        trainer.state = fresh_state(trainer)
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        trainer._train_batch_size = get_user_batch_size(trainer.train_dataset) or trainer.args.train_batch_size
        trainer.control = trainer.callback_handler.on_init_end(trainer.args, trainer.state, trainer.control)
        # As in transformers 5.23: keys and values cached by a decoder are not used in training.
        config: Any = getattr(trainer.model, "config", None)
        if config is not None:
            config.use_cache = trainer.args.use_cache

    # ---- What a training needs, and a subclass may change ----

    def check_training(self) -> None:
        """Refuse what only a training reads; methods of a subclass may read it otherwise."""
        trainer = self.trainer
        self.refuse_uncalled_hooks()
        refuse_untrainable(trainer.args)
        strategy = self.lightning_trainer.strategy
        check_strategy_of_training(trainer.args, strategy, runs_backward_in_step=self.runs_backward_in_step)
        if not self.overrides("compute_loss", "training_step"):
            check_loss_function(trainer.compute_loss_func)
        if not self.overrides("_save", "save_model", "_save_checkpoint"):
            refuse_unsavable(trainer.processing_class, trainer.args)
        if not self.overrides(*_MAKERS_OF_OPTIMIZERS):
            check_optimizers(trainer.optimizer, trainer.lr_scheduler, trainer.optimizer_cls_and_kwargs)

    def refuse_uncalled_hooks(self) -> None:
        """Refuse to train with a subclass that overrides a method never called here."""
        kind = type(self.trainer).__name__
        for name, instead in INSTEAD.items():
            if self.overrides(name):
                raise InputError(
                    f"`{kind}` overrides `{name}`, which is never called here, since Lightning runs the loops; "
                    f"override {instead} instead."
                )

    def overrides(self, *names: str) -> bool:
        """Return whether code outside of portico defines one of the methods ``names``, in a subclass or as a patch."""
        for name in names:
            owner = next((kind for kind in type(self.trainer).__mro__ if name in vars(kind)), None)
            # A decorated method may have the module of the one that it wraps, so its class is asked too.
            modules = [] if owner is None else [owner.__module__, getattr(vars(owner)[name], "__module__", None)]
            if any(not str(module).startswith("portico.") for module in modules):
                return True
        return False

    def adds_metrics(self) -> bool:
        """Return whether the user's code may add metrics to an evaluation."""
        kinds = [type(callback) for callback in self.trainer.callback_handler.callbacks]
        users = [kind for kind in kinds if not kind.__module__.startswith(("portico.", "transformers."))]
        events = [getattr(kind, "on_evaluate", None) for kind in users]
        return self.overrides("evaluate", "_evaluate") or any(
            event is not TrainerCallback.on_evaluate for event in events
        )

    # ---- Data ----

    @contextlib.contextmanager
    def batches_of(self, size: int) -> Iterator[None]:
        """Make ``get_train_dataloader`` return batches of ``size`` examples inside the block."""
        trainer = self.trainer
        before, trainer._train_batch_size = trainer._train_batch_size, size
        try:
            yield
        finally:
            trainer._train_batch_size = before

    def build_loader(self, dataset: "Examples", *, description: str, **options: Any) -> "DataLoader[Any]":
        """Return an unprepared loader over the columns of ``dataset`` that the model accepts."""
        trainer = self.trainer
        # Checked here, and not in the constructor: a subclass may make its loaders of anything.
        check_examples(_DATA_ARGUMENTS.get(description.lower(), f"{description}_dataset"), dataset)
        is_indexed = hf_compat.has_length(dataset) and not self.overrides("_get_train_sampler")
        if options.get("is_training") and is_indexed and len(dataset) == 0:
            raise InputError("`train_dataset` is empty; give examples, or look at what selected them.")
        collator = trainer.data_collator
        check_collator(collator)
        if hasattr(dataset, "remove_columns") and getattr(dataset, "column_names", None) is not None:
            dataset = trainer._remove_unused_columns(dataset, description=description)
        else:
            collator = trainer._get_collator_with_removed_columns(collator, description=description)
        dataset, collator = self.prepare_batching(dataset, collator)
        return self.datamodule.build_loader(dataset, description=description, collate_fn=collator, **options)

    def prepare_batching(self, dataset: "Examples", data_collator: "DataCollator") -> "tuple[Examples, DataCollator]":
        """Return data and collator for a loader; a subclass may return a faster pair that makes the same batches."""
        return dataset, data_collator

    # ---- Optimizer and scheduler ----

    def require_optimizer(self) -> torch.optim.Optimizer:
        if self.trainer.optimizer is None:
            raise InputError("There is no optimizer yet; call `train()` or `create_optimizer()` first.")
        return self.trainer.optimizer

    def renew_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Create the optimizer and the scheduler of a run, unless the trainer has them; pass both to the callbacks."""
        trainer = self.trainer
        if trainer._created_lr_scheduler:
            # The scheduler of an earlier run has counted the steps of that run.
            trainer.lr_scheduler = None
            trainer._created_lr_scheduler = False
        if isinstance(self.lightning_trainer.strategy, EngineStrategy):
            self.start_engine(num_training_steps)
        else:
            trainer.create_optimizer_and_scheduler(num_training_steps)
            optim.drop_misfit_states(trainer.optimizer, trainer.model, self._trained_shapes)
            self._trained_shapes = {name: parameter.shape for name, parameter in trainer.model.named_parameters()}
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(trainer.callback_handler, name, getattr(trainer, name))

    def start_engine(self, num_training_steps: int | None = None) -> None:
        """Start the engine of the strategy for a training, which ends an earlier one, or for evaluations only."""
        trainer = self.trainer
        strategy: Any = self.lightning_trainer.strategy
        if num_training_steps is None:
            if trainer.deepspeed is None:
                strategy.start_inference(trainer.model)
                trainer.deepspeed = trainer.model_wrapped = strategy.wrapped_model
            return
        if trainer.deepspeed is not None:
            trainer.deepspeed.destroy()  # its hooks would stay on the model
        trainer.optimizer = trainer.lr_scheduler = None

        def make_scheduler(optimizer: torch.optim.Optimizer) -> "Scheduler":
            return trainer.create_scheduler(num_training_steps, optimizer)

        parts = strategy.start_engine(trainer.model, num_training_steps, trainer.create_optimizer, make_scheduler)
        trainer.optimizer, trainer.lr_scheduler = parts
        trainer.deepspeed = trainer.model_wrapped = strategy.wrapped_model

    # ---- A run ----

    def renew_model(self, trial: "Trial") -> None:
        trainer = self.trainer
        if trainer.model_init is not None:
            # Every run starts from the same weights.
            self.seed_everything()
            trainer.model = trainer.call_model_init(trial)
            self.move_model_to_its_device()
            trainer.model_wrapped = trainer.model
            trainer.optimizer, trainer.lr_scheduler = None, None
        elif full_evaluation_dtype(trainer.args) is not None:
            self.move_model_to_its_device()  # which the constructor has left to an evaluation
        if isinstance(trainer.processing_class, PreTrainedTokenizerBase) and hasattr(trainer.model, "config"):
            hf_compat.align_special_tokens(trainer.model, trainer.processing_class)

    def set_up_run(
        self,
        plan: RunPlan,
        loader: "Loader",
        checkpoint: str | None = None,
        trial: "Trial" = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainingRun:
        """Set up the state of a run and the model that it trains."""
        trainer = self.trainer
        point = trainer._init_training_state(
            plan.max_steps, plan.num_update_steps_per_epoch, plan.num_train_epochs, checkpoint, trial
        )
        start = ResumePoint(*point)
        if checkpoint is not None:
            plan, start = self.corrections.resume(plan, start, loader, checkpoint)
        if trainer.state.global_step >= plan.max_steps and start.epoch < plan.num_train_epochs:
            start = self.corrections.resume_after_last_step(plan, start)
        check_best_metric(trainer.args, trainer.eval_dataset, adds_metrics=self.adds_metrics())
        self.corrections.warn_of_steps_without_checkpoint()
        trainer.callback_handler.train_dataloader = loader
        run = TrainingRun(
            trainer,
            loader=loader,
            plan=plan,
            checkpoint=checkpoint,
            resume_point=start,
            trial=trial,
            ignore_keys_for_eval=ignore_keys_for_eval,
        )
        trainer.model_wrapped = model_setup.compile_for_training(
            trainer._wrap_model(trainer.model), trainer.model_wrapped, trainer.args
        )
        resume_point = run.resume_point if checkpoint is not None else None
        log_training_start(trainer, plan, resume_point, batch_size=trainer._train_batch_size)
        return run

    def run_training(self, run: TrainingRun) -> TrainOutput:
        trainer = self.trainer
        self.use_lightning_trainer(run)
        self.module.set_model(trainer.model)
        self.module.run = self.datamodule.run = run
        try:
            with self.module.staying_on_device(), run.backward.serving(trainer.accelerator):
                fit(self.lightning_trainer, self.module, self.datamodule)
        except Exception as error:
            explain_call(error, trainer)
            explain_failure(error, run.loader, "train_dataset", trainer.train_dataset, trainer.model)
            raise
        finally:
            with contextlib.suppress(Exception):
                # A failed run still completes its last checkpoint, and raises the error that ended it.
                self.background.wait()
            self.background.release()
        if run.next_batch_size is not None:
            return trainer._inner_training_loop(
                run.next_batch_size,
                resume_from_checkpoint=run.checkpoint,
                trial=run.trial,
                ignore_keys_for_eval=run.ignore_keys_for_eval,
            )
        if run.output is None:
            # The checkpoint was already at the end of the run, so Lightning ran no loop and no hook.
            run.begin()
            run.finish()
        assert run.output is not None
        return run.output

    # ---- A step ----

    @property
    def runs_backward_in_step(self) -> bool:
        """Whether backward runs inside ``training_step``, because a subclass overrides it."""
        return self.overrides("training_step") or "training_step" in self.trainer.__dict__

    def backward_at_once(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run backward on ``loss`` through the strategy, at once."""
        refuse_own_backward(self.lightning_trainer.strategy)
        self.lightning_trainer.strategy.backward(loss, None, **kwargs)

    def sums_losses(self, num_items_in_batch: "NumItems") -> bool:
        trainer = self.trainer
        if trainer.loss_is_scaled_for_ga is not None:
            return trainer.loss_is_scaled_for_ga
        by_model = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
        return by_model or trainer.compute_loss_func is not None

    def forward_with_loss(
        self, model: nn.Module, inputs: "Batch", labels: torch.Tensor | None, num_items_in_batch: "NumItems"
    ) -> tuple[torch.Tensor, "Nested"]:
        trainer = self.trainer
        outputs = model(**inputs)
        if trainer.compute_loss_func is not None:
            if labels is None:
                logger.warning(
                    "Trainer: `compute_loss_func` is defined but `labels=None`. Your custom loss function will still "
                    "be called with labels=None. "
                )
            return trainer.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch), outputs
        if labels is not None and trainer.label_smoother is not None:
            options = self.get_smoothing_options(model)
            return trainer.label_smoother(outputs, labels, num_items_in_batch=num_items_in_batch, **options), outputs
        return loss_of(outputs, inputs), outputs

    def get_smoothing_options(self, model: nn.Module) -> dict[str, bool]:
        name = type(hf_compat.unwrap_peft_model(self.trainer.accelerator.unwrap_model(model))).__name__
        return {"shift_labels": True} if name in hf_compat.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() else {}

    def clip_and_measure_gradients(self) -> torch.Tensor | float:
        """Scale the gradients down to ``args.max_grad_norm``, and return the norm that they had."""
        trainer = self.trainer
        # Measured without clipping too: transformers logs a norm under `max_grad_norm=0`.
        model = self.module.run.model
        norm = trainer._clip_grad_norm(model) if trainer.args.max_grad_norm > 0 else None
        return trainer._get_grad_norm(model, grad_norm=norm)

    # ---- An evaluation ----

    def run_evaluation_loop(self, dataloader: "Loader", **options: Any) -> EvalLoopOutput:
        """Run ``evaluation_loop``, or ``prediction_loop`` where a subclass written for transformers 4 asks for it."""
        trainer = self.trainer
        is_overridden = self.overrides("prediction_loop")
        # Plain arguments of transformers 5 do not have it.
        is_older = is_overridden and getattr(trainer.args, "use_legacy_prediction_loop", False)
        loop = trainer.prediction_loop if is_older else trainer.evaluation_loop
        if not trainer.is_in_train:
            check_metrics(trainer)
            refuse_cast_of_shards(trainer.args, trainer.model)
        # Here too, for an overridden `evaluation_loop`: under transformers the forward still casts after training.
        was_trained = self.module.run is not None
        strategy = self.lightning_trainer.strategy
        with autocast_forward(trainer.model, strategy) if was_trained else contextlib.nullcontext():
            return loop(dataloader, **options)

    def evaluation_session(self, dataloader: "Loader", **options: Any) -> EvaluationSession:
        return EvaluationSession(self.trainer, dataloader, **options)

    def evaluating_own_data(self, name: str | None) -> contextlib.AbstractContextManager[Any]:
        """Return a context for an evaluation of ``eval_dataset``, or of its set ``name``, that Lightning starts."""
        return contextlib.nullcontext()

    def add_speed(self, output: EvalLoopOutput, prefix: str, start_time: float) -> dict[str, float]:
        assert output.metrics is not None
        assert output.num_samples is not None
        num_steps = math.ceil(
            output.num_samples / (self.trainer.args.eval_batch_size * self.trainer.accelerator.data_parallel_size)
        )
        start_time += output.metrics.get(f"{prefix}_model_preparation_time", 0)
        output.metrics.update(
            hf_compat.speed_metrics(prefix, start_time, num_samples=output.num_samples, num_steps=num_steps)
        )
        return output.metrics

    # ---- Checkpoints ----

    def write_checkpoint(self, folder: Path, run_folder: Path) -> None:
        """Write model, optimizer, scheduler, random states and trainer state; all processes call this."""
        trainer = self.trainer
        with averaged_weights(self.lightning_trainer):
            trainer.save_model(str(folder), _internal_call=True)
        trainer.accelerator.wait_for_everyone()
        best = run_folder / f"checkpoint-{self.corrections.best_step()}"
        if best.name == folder.name or best.exists():
            trainer.state.best_model_checkpoint = str(best)
        if not trainer.args.save_only_model:
            trainer._save_optimizer_and_scheduler(str(folder))
            trainer._save_scaler(str(folder))
            trainer._save_rng_state(str(folder))
            if self.module.run is not None:
                self.module.run.save_position(str(folder))
                self.module.run.save_lightning_states(str(folder))
        if trainer.args.should_save:
            writer.export_callback_states(trainer.callback_handler, trainer.control, trainer.state)
            self.write_state(folder)

    def finish_checkpoint(self) -> None:
        """Complete the checkpoint that is written in the background, if there is one; all processes call this."""
        if not self.background.is_pending:
            return
        writer.finish_checkpoint(self.checkpoint_parts())
        if self.trainer.args.should_save and self.background.folder is not None:
            self.trainer._rotate_checkpoints(use_mtime=True, output_dir=str(self.background.folder.parent))

    def checkpoint_parts(self) -> writer.CheckpointParts:
        trainer = self.trainer
        return writer.CheckpointParts(
            args=trainer.args,
            async_save=trainer.args.async_save,
            model=trainer.model,
            optimizer=trainer.optimizer,
            lr_scheduler=trainer.lr_scheduler,
            accelerator=trainer.accelerator,
            background=self.background,
            engine=trainer.deepspeed,
        )

    def metric_for_best_model(self, metrics: dict[str, float]) -> float:
        key = metric_key(self.trainer.args.metric_for_best_model or "loss")
        if key not in metrics:
            raise InputKeyError(
                f"The `metric_for_best_model` training argument is set to '{key}', which is not found in the "
                f"evaluation metrics. The available evaluation metrics are: {list(metrics)}. Consider changing the "
                "`metric_for_best_model` via the TrainingArguments. Or let `compute_metrics` return it."
            )
        value = metrics[key]
        if np.ndim(value) and np.size(value) != 1:
            raise InputTypeError(
                f"`{key}` is a {type(value).__name__} of shape {list(np.shape(value))}, which cannot be compared as "
                "`metric_for_best_model`; let `compute_metrics` return a number under that name, or set another one."
            )
        return value

    def load_weights(self, model: nn.Module, checkpoint: str) -> None:
        result = weights.load_weights(model, checkpoint, renames="renamed_weights" in self.corrections)
        if weights.are_renamed(model, result):
            self.corrections.warn_of_renamed_weights(checkpoint, len(result.missing_keys))
        self.trainer._issue_warnings_after_load(result)

    def convert_optimizer_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Convert the optimizer state of a checkpoint for this trainer's optimizer, where the two differ."""
        return state

    def adopt_state(self, state: TrainerState) -> None:
        """Continue from the state of a checkpoint, and from the callback states in it."""
        self.trainer.state = state
        self.trainer._load_callback_state()

    def restore_optimizer_and_schedule(self, checkpoint: str) -> None:
        """Restore optimizer, scheduler and gradient scaler from the folder of a checkpoint."""
        self.trainer._load_optimizer_and_scheduler(checkpoint)
        self.trainer._load_scaler(checkpoint)

    # ---- Logs ----

    def record_in_history(self, logs: dict[str, float]) -> dict[str, float]:
        """Write ``logs`` into the history and to the callbacks; return those that are numbers."""
        trainer = self.trainer
        # A metric of several values is an array, of which a checkpoint could not be written.
        plain = {key: value if isinstance(value, int | float) else plain_values(value) for key, value in logs.items()}
        trainer.state.log_history.append({**plain, "step": trainer.state.global_step})
        trainer.control = trainer.callback_handler.on_log(trainer.args, trainer.state, trainer.control, logs)
        return {key: value for key, value in logs.items() if isinstance(value, int | float)}

    def write_state(self, folder: Path) -> None:
        with writer.naming_full_disk(folder), replaced(folder / STATE_FILE) as staging:
            self.trainer.state.save_to_json(str(staging))

    # ---- Lightning and its processes ----

    def use_lightning_trainer(self, run: TrainingRun | None = None) -> None:
        """Create the ``lightning.Trainer`` of a run: it keeps its counts after a fit, so each run needs a new one."""
        trainer = self.trainer
        parts = self.lightning_parts
        if run is not None:
            averages = find_averaging_callbacks(parts["callbacks"])
            others = [callback for callback in parts["callbacks"] if callback not in averages]
            parts = {**parts, "callbacks": [*averages, EventBridge(run), *others]}
        plan = run.plan if run is not None else None
        self.lightning_trainer = build_lightning_trainer(
            trainer.args, plan=plan, model=trainer.__dict__.get("model"), further=self.lightning_kwargs, **parts
        )
        if trainer.__dict__.get("eval_dataset") is None:
            self.lightning_trainer.num_sanity_val_steps = 0
        trainer.args.lightning_strategy = self.lightning_trainer.strategy

    def get_lightning_callbacks(self, module: TrainerModule) -> list[Callback]:
        """Return the callbacks that a user's ``lightning.Trainer`` needs to run ``module``; none for this trainer."""
        if self.lightning_trainer is None:
            # In a worker: the user's trainer pickled the module into it.
            self.use_lightning_trainer()
        is_own = module.trainer.strategy is self.lightning_trainer.strategy
        return [] if is_own else [PlainTrainerBridge(module, self.trainer)]

    def move_model_to_its_device(self) -> None:
        """Move the model to the device of this process, unless the strategy launches workers that will hold it."""
        trainer = self.trainer
        # As in transformers: a model quantised by bitsandbytes stays where it was loaded.
        is_movable = getattr(trainer.model, "quantization_method", None) != "bitsandbytes"
        if trainer.place_model_on_device and is_movable and not launches_workers(self.lightning_trainer.strategy):
            refuse_empty(trainer.model, trainer.args.device)
            trainer._move_model_to_device(trainer.model, trainer.args.device)

    def enter_worker(self) -> None:
        """Set up this trainer in a process that the strategy launched."""
        trainer = self.trainer
        self.use_lightning_trainer()
        connect(self.lightning_trainer.strategy)
        self.move_model_to_its_device()
        trainer.state.is_world_process_zero = trainer.is_world_process_zero()
        trainer.state.is_local_process_zero = trainer.is_local_process_zero()

    def copy_for(self, trainer: Any) -> Self:
        """Return a core with the same parts for a copy of the trainer, whose runs are its own."""
        copied = copy.copy(self)
        copied.trainer, copied.corrections = trainer, Corrections(trainer)
        copied.use_lightning_trainer()
        copied.module, copied.datamodule = TrainerModule(trainer.model, trainer), TrainerDataModule(trainer)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        # The worker that unpickles the trainer makes another one.
        return {**self.__dict__, "lightning_trainer": None}


def loss_of(outputs: "Nested", inputs: "Batch") -> torch.Tensor:
    """Return the model's loss, under ``loss`` or first in a tuple; raise ``ValueError`` if there is no loss."""
    if isinstance(outputs, dict) and "loss" not in outputs:
        raise ValueError(
            "The model did not return a loss from the inputs, only the following keys: "
            f"{','.join(outputs)}. For reference, the inputs it received are {','.join(inputs)}. Give it labels under "
            "the name it takes, load one of the `AutoModelFor...` classes if it has no head for a task, or override "
            "`compute_loss`."
        )
    return outputs["loss"] if isinstance(outputs, dict) else outputs[0]
