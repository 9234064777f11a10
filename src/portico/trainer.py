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
    enable_full_determinism,
    number_of_arguments,
    set_seed,
)
from transformers.utils.import_utils import is_in_notebook

from portico.accelerator.facade_accelerator import FacadeAccelerator
from portico.accelerator.settings import sharing_options
from portico.datamodule import TrainerDataModule
from portico.distributed.processes import connect_early
from portico.errors import InputError, InputRuntimeError
from portico.facade.argument_order import refuse_old_order
from portico.facade.arguments import taken_arguments
from portico.facade.checks import check_parts
from portico.facade.historic_overrides import adapt_overrides
from portico.facade.hooks import refuse_uncalled_hooks
from portico.facade.integrations import reporting_callbacks, termination_callbacks
from portico.facade.introspection import ModelTraits, label_smoother
from portico.facade.old_names import newer_processing_class
from portico.facade.part_kinds import check_part_kinds
from portico.facade.running import RunningMethods
from portico.module import TrainerModule
from portico.precision import full_evaluation_dtype
from portico.run_log import announce_overruled
from portico.run_start import fresh_state


class Trainer(RunningMethods):
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
        refuse_uncalled_hooks(type(self))
        refuse_old_order(compute_loss_func, compute_metrics)
        check_part_kinds(model, callbacks, optimizers, lightning_callbacks)
        self.args = taken_arguments(args)
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
        connect_early(self.lightning_trainer.strategy)
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
        self.accelerator = FacadeAccelerator(self._current_strategy, sharing_options(self.args))
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
        if full_evaluation_dtype(self.args) is None:
            self._place_model()
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


def _progress_callback() -> type[TrainerCallback]:
    if is_in_notebook():
        from transformers.utils.notebook import NotebookProgressCallback

        return NotebookProgressCallback
    return ProgressCallback
