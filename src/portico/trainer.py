"""``Trainer``: Hugging Face's API, Lightning's loops."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch import nn
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase, TrainerCallback, default_data_collator
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.trainer_callback import (
    CallbackHandler,
    DefaultFlowCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerControl,
)
from transformers.trainer_utils import (
    TrainerMemoryTracker,
    TrainOutput,
    align_special_tokens,
    enable_full_determinism,
    number_of_arguments,
    set_seed,
)
from transformers.utils.import_utils import is_in_notebook

from portico.accelerator import FacadeAccelerator
from portico.arguments import TrainingArguments, adopt_arguments
from portico.callbacks import EventBridge
from portico.checkpoint.resume import find_checkpoint, resumed_batch_size
from portico.datamodule import TrainerDataModule
from portico.errors import InputError, InputRuntimeError
from portico.facade.announcements import announce_without_effect
from portico.facade.argument_order import refuse_old_order
from portico.facade.checks import check_parts
from portico.facade.historic_overrides import adapt_overrides
from portico.facade.hooks import refuse_uncalled_hooks
from portico.facade.integrations import reporting_callbacks, termination_callbacks
from portico.facade.introspection import ModelTraits, label_smoother
from portico.facade.number_checks import check_numbers
from portico.facade.old_names import newer_processing_class
from portico.facade.part_kinds import check_part_kinds
from portico.facade.preparation import apply_log_level, compiled_for_training, prepared_for_training
from portico.facade.requirements import check_requirements
from portico.facade.training import TrainingMethods
from portico.facade.unsupported import refuse_unsupported
from portico.hub.uploads import quiet_uploads
from portico.lightning_trainer import build_lightning_trainer
from portico.memory import with_batches_that_fit
from portico.module import TrainerModule
from portico.plan import ResumePoint, RunPlan
from portico.precision import casting_forward, full_evaluation_dtype
from portico.quiet import quiet_lightning
from portico.run_log import announce_overruled, announce_training, logger
from portico.state import TrainingRun, fresh_state
from portico.termination import exiting_on_termination


class Trainer(TrainingMethods):
    """The Hugging Face ``Trainer``, over Lightning.

    Args, methods, callbacks and numbers are those of ``transformers.Trainer``; see there. What is added:

    Args:
        compute_metrics: A function of an ``EvalPrediction``, or a ``torchmetrics.Metric``, a ``MetricCollection`` or
            a dict of metrics by name. These are updated batch by batch with ``(logits, labels)``, after
            ``preprocess_logits_for_metrics``, so ``evaluate`` keeps no logits (``predict`` still returns them). Their
            results carry the usual prefix; one without a name goes by its class, and one that is no number becomes a
            nested list (``ClasswiseWrapper`` names the entries). Labels of -100 reach the metric: set its
            ``ignore_index=-100``.
        tokenizer: Older spelling of ``processing_class``.
        lightning_callbacks: Lightning callbacks; they see a normal Lightning run.
        loggers: Lightning loggers; they get what Hugging Face logs.
        plugins: Lightning plugins.

    Attributes:
        lightning_trainer: The ``lightning.Trainer`` of the present run, or of the last.
        module: The ``LightningModule`` around the model.
        datamodule: The ``LightningDataModule`` around the data sets.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Any = None,
        callbacks: list[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        *,
        tokenizer: Any = None,
        lightning_callbacks: list[Callback] | None = None,
        loggers: list[Logger] | None = None,
        plugins: list[Any] | None = None,
    ) -> None:
        if args is None:
            logger.info("No `TrainingArguments` passed, using `output_dir=tmp_trainer`.")
        self.args = adopt_arguments(TrainingArguments(output_dir="tmp_trainer") if args is None else args)
        refuse_uncalled_hooks(type(self))
        refuse_old_order(compute_loss_func, compute_metrics)
        check_part_kinds(model, callbacks, optimizers, lightning_callbacks)
        refuse_unsupported(self.args)
        check_numbers(self.args)
        apply_log_level(self.args)
        announce_without_effect(self.args)
        check_requirements(self.args)
        self._seed_everything()
        self._lightning_parts: dict[str, list[Any]] = {
            "callbacks": list(lightning_callbacks or []),
            "loggers": list(loggers or []),
            "plugins": list(plugins or []),
        }
        self._loggers = self._lightning_parts["loggers"]
        self._memory_tracker = TrainerMemoryTracker(self.args.skip_memory_metrics)
        self._memory_tracker.start()
        self.is_in_train = False
        self._use_lightning_trainer()
        self.model = model
        self.create_accelerator_and_postprocess()
        self._take_model(model, model_init)
        processing_class = newer_processing_class(processing_class, tokenizer)
        self._take_data(data_collator, train_dataset, eval_dataset, processing_class)
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.neftune_noise_alpha = self.args.neftune_noise_alpha
        self._validate_args()
        self._start_bookkeeping(callbacks)
        self._memory_tracker.stop_and_update_metrics()

    # Construction

    def create_accelerator_and_postprocess(self) -> None:
        """Make ``self.accelerator``, which hands everything to the Lightning strategy of the present run."""
        self.accelerator = FacadeAccelerator(lambda: self.lightning_trainer.strategy, self.args.data_seed)
        # Evaluations put the plain function back, so this holds for the first alone, as in Hugging Face's trainer.
        self.gather_function = partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )
        self._note_strategy(self.lightning_trainer.strategy)

    def end(self) -> None:
        """Take the processes of the run apart; the last call of a script that was started in several."""
        self.accelerator.end_training()

    def _validate_args(self) -> None:
        check_parts(self)
        announce_overruled(self)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adapt_overrides(cls, Trainer)

    def _seed_everything(self) -> None:
        if self.args.full_determinism:
            enable_full_determinism(self.args.seed)
        else:
            set_seed(self.args.seed)

    def _take_model(self, model: nn.Module | None, model_init: Callable[..., nn.Module] | None) -> None:
        if model is None and model_init is None:
            raise InputRuntimeError("The trainer needs either `model` or `model_init`, and got neither; give one.")
        if model is not None and model_init is not None:
            raise InputError("The trainer needs either `model` or `model_init`, and not both; give one of them.")
        self.model_init = model_init
        self.model = self.call_model_init() if model is None else model
        self._note_placement(self.model)
        # A full evaluation in less precision casts the model first, and moves half as many bytes.
        if self.place_model_on_device and full_evaluation_dtype(self.args) is None:
            self._move_model_to_device(self.model, self.args.device)
        self.model_wrapped = self.model
        traits = ModelTraits.of(self.model, self.accelerator.unwrap_model(self.model), self.args.label_names)
        self.label_names = traits.label_names
        self.can_return_loss = traits.can_return_loss
        self.model_accepts_loss_kwargs = traits.accepts_loss_kwargs
        self._loss_shifts_labels = traits.loss_shifts_labels
        self.label_smoother = label_smoother(self.args, self.model)
        self._signature_columns = None
        self.module = TrainerModule(self.model, self)

    def _take_data(self, data_collator: Any, train_dataset: Any, eval_dataset: Any, processing_class: Any) -> None:
        pads = isinstance(processing_class, PreTrainedTokenizerBase | SequenceFeatureExtractor)
        default_collator = DataCollatorWithPadding(processing_class) if pads else default_data_collator
        self.data_collator = default_collator if data_collator is None else data_collator
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.processing_class = processing_class
        self.datamodule = TrainerDataModule(self)

    def _start_bookkeeping(self, callbacks: list[TrainerCallback | type[TrainerCallback]] | None) -> None:
        reporting = reporting_callbacks(self.args.report_to, getattr(self.args, "logging_dir", None))
        self.callback_handler = CallbackHandler(
            [DefaultFlowCallback, *reporting, *termination_callbacks(self), *(callbacks or [])],
            self.model,
            self.processing_class,
            self.optimizer,
            self.lr_scheduler,
        )
        self.add_callback(PrinterCallback if self.args.disable_tqdm else _progress_callback())
        if self.args.push_to_hub:
            self.init_hf_repo()
        if self.args.should_save:
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
        self.control = TrainerControl()
        self.state = fresh_state(self)
        self.hp_name = None
        self.hp_search_backend = None
        self.current_flos = 0
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        self._train_batch_size = self.args.train_batch_size
        self._created_lr_scheduler = False
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)
        if getattr(self.model, "config", None) is not None:
            self.model.config.use_cache = self.args.use_cache

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Make a new model, of ``trial``'s hyperparameters where ``model_init`` takes them."""
        assert self.model_init is not None
        num_arguments = number_of_arguments(self.model_init)
        if num_arguments > 1:
            raise InputRuntimeError(
                f"`model_init` takes {num_arguments} arguments; it may take none, or the trial alone."
            )
        model = self.model_init(trial) if num_arguments else self.model_init()
        if model is None:
            raise InputRuntimeError("`model_init` returned None; let it return a model.")
        return model

    # Training

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and return step count, mean loss and metrics.

        Args:
            resume_from_checkpoint: Folder of a checkpoint (of either library), or ``True`` for the last in
                ``args.output_dir``.
            trial: Trial of a hyperparameter search.
            ignore_keys_for_eval: Model outputs that evaluations during training leave out.

        Raises:
            InputError: If there is no checkpoint where one was named, or the data give no number of steps.
        """
        checkpoint = find_checkpoint(resume_from_checkpoint, self.args.output_dir)
        self._memory_tracker.start()
        self.is_in_train = True
        try:
            self._renew_model(trial)
            with prepared_for_training(self.model, self.args), quiet_uploads(self.args):
                self._hp_search_setup(trial)
                if checkpoint is not None:
                    self._load_from_checkpoint(checkpoint)
                    self._train_batch_size = resumed_batch_size(checkpoint, self.args) or self._train_batch_size
                loop = partial(
                    self._inner_training_loop,
                    args=self.args,
                    resume_from_checkpoint=checkpoint,
                    trial=trial,
                    ignore_keys_for_eval=ignore_keys_for_eval,
                )
                if self.args.auto_find_batch_size:
                    return with_batches_that_fit(loop, self._train_batch_size)
                return loop(self._train_batch_size)
        finally:
            self.is_in_train = False

    def _renew_model(self, trial: Any) -> None:
        if self.model_init is not None:
            self._seed_everything()
            self.model = self.call_model_init(trial)
            if self.place_model_on_device:
                self._move_model_to_device(self.model, self.args.device)
            self.model_wrapped = self.model
            self.optimizer, self.lr_scheduler = None, None
        if isinstance(self.processing_class, PreTrainedTokenizerBase) and hasattr(self.model, "config"):
            align_special_tokens(self.model, self.processing_class)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Count a run, set its state up and let Lightning run it.

        Args:
            batch_size: Examples in a batch of this process; by default as before.
            args: Training arguments; by default the trainer's.
            resume_from_checkpoint: Folder of the checkpoint that the run goes on from.
            trial: Trial of a hyperparameter search.
            ignore_keys_for_eval: Model outputs that evaluations during training leave out.
        """
        args = self.args if args is None else args
        self._train_batch_size = self._train_batch_size if batch_size is None else batch_size
        run = self._plan_run(args, resume_from_checkpoint, trial, ignore_keys_for_eval)
        self.model_wrapped = compiled_for_training(self._wrap_model(self.model), self.model_wrapped, self.args)
        announce_training(self, run.plan, run.resume_point if resume_from_checkpoint is not None else None)
        return self._fit(run)

    def _plan_run(
        self, args: Any, checkpoint: str | None, trial: Any, ignore_keys_for_eval: list[str] | None
    ) -> TrainingRun:
        """Count a run and set its state up."""
        loader = self.get_train_dataloader()
        plan = RunPlan.of_training_values(
            self.set_initial_training_values(args, loader),
            gradient_accumulation_steps=args.gradient_accumulation_steps,
        )
        point = self._init_training_state(
            plan.max_steps, plan.num_update_steps_per_epoch, plan.num_train_epochs, checkpoint, trial
        )
        self.callback_handler.train_dataloader = loader
        return TrainingRun(
            self,
            loader=loader,
            plan=plan,
            checkpoint=checkpoint,
            resume_point=ResumePoint(*point),
            trial=trial,
            ignore_keys_for_eval=ignore_keys_for_eval,
        )

    def _fit(self, run: TrainingRun) -> TrainOutput:
        self._use_lightning_trainer(run)
        self.module.take(self.model)
        self.module.run = self.datamodule.run = run
        at_once = self.accelerator.backward_now
        self.accelerator.backward_now = self._backward_now if self._runs_own_backward else None
        try:
            with (
                quiet_lightning(),
                casting_forward(self.model, self.lightning_trainer.strategy),
                exiting_on_termination(self.lightning_trainer),
            ):
                self.lightning_trainer.fit(self.module, datamodule=self.datamodule)
        except SystemExit as exit_:
            # Lightning turns an interrupt into an exit, which notebooks and callers that clean up cannot catch.
            if isinstance(exit_.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from exit_
            raise
        finally:
            self.accelerator.backward_now = at_once
            self.model.to(self.args.device)
        if run.output is None:
            # The checkpoint was at the end already, so Lightning ran no loop and no hook.
            run.begin()
            run.finish()
        assert run.output is not None
        return run.output

    # Lightning

    def _use_lightning_trainer(self, run: TrainingRun | None = None) -> None:
        """Make the ``lightning.Trainer`` of a run: one that has fitted goes on counting, so each run gets its own."""
        parts = self._lightning_parts
        bridge: list[Any] = [EventBridge(run)] if run is not None else []
        self.lightning_trainer = build_lightning_trainer(
            self.args,
            plan=run.plan if run is not None else None,
            callbacks=bridge + parts["callbacks"],
            loggers=parts["loggers"],
            plugins=parts["plugins"],
        )
        self.args.lightning_strategy = self.lightning_trainer.strategy


def _progress_callback() -> type[TrainerCallback]:
    if is_in_notebook():
        from transformers.utils.notebook import NotebookProgressCallback

        return NotebookProgressCallback
    return ProgressCallback
