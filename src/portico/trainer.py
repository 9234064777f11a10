"""``Trainer``: Hugging Face's API, Lightning's loops."""

import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import SIGTERMException
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
from portico.checkpoint.callback_states import restore_callbacks
from portico.checkpoint.resume import find_checkpoint, read_state
from portico.datamodule import TrainerDataModule
from portico.errors import InputError
from portico.facade.checks import check_parts
from portico.facade.integrations import reporting_callbacks
from portico.facade.introspection import ModelTraits, label_smoother
from portico.facade.preparation import apply_log_level, prepared_for_training
from portico.facade.training import TrainingMethods
from portico.facade.unsupported import refuse_unsupported
from portico.lightning_trainer import build_lightning_trainer
from portico.module import TrainerModule
from portico.plan import ResumePoint
from portico.quiet import quiet_lightning
from portico.state import TrainingRun, count_run, fresh_state

logger = logging.getLogger(__name__)


class Trainer(TrainingMethods):
    """The Hugging Face ``Trainer``, over Lightning.

    Args, methods, callbacks and numbers are those of ``transformers.Trainer``; see there. What is added:

    Args:
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
        compute_metrics: Callable[..., Any] | None = None,
        callbacks: list[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        *,
        lightning_callbacks: list[Callback] | None = None,
        loggers: list[Logger] | None = None,
        plugins: list[Any] | None = None,
    ) -> None:
        self.args = adopt_arguments(TrainingArguments(output_dir="tmp_trainer") if args is None else args)
        refuse_unsupported(self.args)
        apply_log_level(self.args)
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
        self.accelerator = FacadeAccelerator(lambda: self.lightning_trainer.strategy, self.args.data_seed)
        self.gather_function = self.accelerator.gather_for_metrics
        self._take_model(model, model_init)
        self._take_data(data_collator, train_dataset, eval_dataset, processing_class)
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        check_parts(self)
        if self.args.should_save:
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
        self._start_bookkeeping(callbacks)
        self._memory_tracker.stop_and_update_metrics()

    # Construction

    def _seed_everything(self) -> None:
        if self.args.full_determinism:
            enable_full_determinism(self.args.seed)
        else:
            set_seed(self.args.seed)

    def _take_model(self, model: nn.Module | None, model_init: Callable[..., nn.Module] | None) -> None:
        if (model is None) == (model_init is None):
            raise InputError("The trainer needs either `model` or `model_init`, and not both; give one of them.")
        self.model_init = model_init
        self.model = self.call_model_init() if model is None else model
        self.model.to(self.args.device)
        self.model_wrapped = self.model
        traits = ModelTraits.of(self.accelerator.unwrap_model(self.model), self.args.label_names)
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
        reporting = reporting_callbacks(self.args.report_to)
        self.callback_handler = CallbackHandler(
            [DefaultFlowCallback, *reporting, *(callbacks or [])],
            self.model,
            self.processing_class,
            self.optimizer,
            self.lr_scheduler,
        )
        self.add_callback(PrinterCallback if self.args.disable_tqdm else _progress_callback())
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
            raise InputError(f"`model_init` takes {num_arguments} arguments; it may take none, or the trial alone.")
        model = self.model_init(trial) if num_arguments else self.model_init()
        if model is None:
            raise InputError("`model_init` returned None; let it return a model.")
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
            with prepared_for_training(self.model, self.args):
                if checkpoint is not None:
                    self._load_from_checkpoint(checkpoint)
                return self._fit(self._plan_run(checkpoint, trial, ignore_keys_for_eval))
        finally:
            self.is_in_train = False

    def _renew_model(self, trial: Any) -> None:
        if self.model_init is not None:
            self._seed_everything()
            self.model = self.call_model_init(trial).to(self.args.device)
            self.model_wrapped = self.model
            self.optimizer, self.lr_scheduler = None, None
        if isinstance(self.processing_class, PreTrainedTokenizerBase) and hasattr(self.model, "config"):
            align_special_tokens(self.model, self.processing_class)

    def _plan_run(self, checkpoint: str | None, trial: Any, ignore_keys_for_eval: list[str] | None) -> TrainingRun:
        loader = self.get_train_dataloader()
        plan = count_run(self, loader)
        self.state = fresh_state(self)
        self.state.is_hyper_param_search = trial is not None
        self.state.train_batch_size = self._train_batch_size
        self.state.compute_steps(self.args, plan.max_steps)
        resumed = read_state(checkpoint, self.args) if checkpoint is not None else None
        point = ResumePoint()
        if resumed is not None:
            self.state = resumed
            restore_callbacks(self)
            point = plan.resume_point(resumed.global_step, ignore_data_skip=self.args.ignore_data_skip)
        self._trial = trial
        self.state.init_training_references(self, plan.max_steps, plan.num_train_epochs, trial)
        self.callback_handler.train_dataloader = loader
        return TrainingRun(
            self,
            loader=loader,
            plan=plan,
            checkpoint=checkpoint,
            resume_point=point,
            trial=trial,
            ignore_keys_for_eval=ignore_keys_for_eval,
        )

    def _fit(self, run: TrainingRun) -> TrainOutput:
        self._use_lightning_trainer(run)
        self.module.take(self.model)
        self.model_wrapped = self._wrap_model(self.model)
        self.module.run = self.datamodule.run = run
        self.accelerator.backward_now = self._backward_now if self._runs_own_backward else None
        try:
            with quiet_lightning():
                self.lightning_trainer.fit(self.module, datamodule=self.datamodule)
        except SIGTERMException as exit_:
            # Lightning's exit would have the code of success, and whoever ended the run would take it for finished.
            raise SystemExit(128 + signal.SIGTERM) from exit_
        except SystemExit as exit_:
            # Lightning turns an interrupt into an exit, which notebooks and callers that clean up cannot catch.
            if isinstance(exit_.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from exit_
            raise
        finally:
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
