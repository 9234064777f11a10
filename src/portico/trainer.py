"""``Trainer``: Hugging Face's API, Lightning's loops."""

import contextlib
import inspect
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from torch import nn
from torch.utils.data import RandomSampler, Sampler, SequentialSampler
from transformers import (
    DataCollatorWithPadding,
    DefaultFlowCallback,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    SequenceFeatureExtractor,
    TrainerCallback,
    TrainerControl,
    default_data_collator,
    enable_full_determinism,
    get_scheduler,
    set_seed,
)

from portico.checkpoint.resume import (
    find_checkpoint,
    load_optimizer_and_scheduler,
    load_rng_state,
    load_scaler,
    read_state,
    resumed_batch_size,
    save_rng_state,
)
from portico.checkpoint.weights import announce_mismatch, load_weights, save_weights
from portico.checkpoint.writer import (
    destination,
    restore_callbacks,
    save_arguments,
    save_optimizer_and_scheduler,
    save_scaler,
    write_checkpoint,
)
from portico.data.datamodule import TrainerDataModule
from portico.data.loaders import move_to_device
from portico.deprecated import adapt_overrides, leaves_out, refuse_old_order, taking_a_norm_or_none, warn_of_old_name
from portico.distributed.accelerator import Accelerator, sharing_options
from portico.distributed.precision import casting_forward, full_evaluation_dtype
from portico.distributed.processes import connect, connect_early, ending_together, in_every_process
from portico.distributed.strategies import refuse_sharded_weights
from portico.errors import InputError, InputKeyError, InputRuntimeError, InputTypeError, MissingPackageError
from portico.hf_compat import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    BatchRebalanceSampler,
    BestRun,
    CallbackHandler,
    EvalLoopOutput,
    HPSearchBackend,
    LengthGroupedSampler,
    PredictionOutput,
    TrainerMemoryTracker,
    TrainOutput,
    align_special_tokens,
    default_compute_objective,
    has_length,
    is_in_notebook,
    logger,
    nested_detach,
    nested_numpify,
    number_of_arguments,
    optimizer_cls_and_kwargs,
    rotate_checkpoints,
    sort_checkpoints,
    speed_metrics,
    unwrap_peft_model,
)
from portico.hf_compat import log_metrics as _print_metrics
from portico.hf_compat import metrics_format as _format_metrics
from portico.hp_search import (
    FiniteObjective,
    checked_directions,
    installed_backend,
    save_trial_checkpoint,
    search_backend,
)
from portico.hub import (
    create_repository,
    finish_uploads,
    quiet_uploads,
    upload_checkpoint,
    upload_run,
    write_model_card,
)
from portico.lightning_compat import exiting_on_termination, makes_workers, publish_metrics, quiet_lightning
from portico.loop.evaluation import EvaluationSession, run_evaluation
from portico.loop.lightning_trainer import build_lightning_trainer
from portico.loop.module import TrainerModule
from portico.loop.run import EventBridge, TrainingRun, announce_overruled, announce_training, count_run, fresh_state
from portico.memory import is_out_of_memory, with_batches_that_fit
from portico.model_setup import (
    ModelTraits,
    compiled_for_training,
    label_smoother,
    prepared_for_training,
    reporting_callbacks,
    termination_callbacks,
)
from portico.optim import (
    build_optimizer,
    decay_parameter_names,
    learning_rate,
    parameter_groups,
    steps_after_evaluation,
)
from portico.plan import ResumePoint, RunPlan
from portico.validation import check_part_kinds, check_parts, refuse_uncalled_hooks, taken_arguments


class Trainer:
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
        is_model_parallel: Whether the layers of the model lie on several devices.
        place_model_on_device: Whether the trainer moves the model to the device of this process.
        is_deepspeed_enabled: Whether the strategy is DeepSpeed.
        is_fsdp_enabled: Whether the strategy is FSDP.
        hub_model_id: Full name of the repository, once there is one.
        push_in_progress: Uploads started while training.
    """

    # Whether `compute_loss` divides by the accumulation window itself; `None` decides from the model.
    loss_is_scaled_for_ga: bool | None = None
    hub_model_id: str | None = None
    push_in_progress: Any = None
    # Attributes that a process started by the strategy hands back to the script.
    _carried_from_workers: tuple[str, ...] = ("state", "control")
    # Read by subclasses; the Lightning strategy holds DeepSpeed's engine, and none of ours runs FSDP on XLA.
    deepspeed = None
    is_fsdp_xla_enabled = False
    is_fsdp_xla_v1_enabled = False
    is_fsdp_xla_v2_enabled = False
    is_distributed_loading_by_transformers = False
    # Read by `training_step` overrides copied from transformers 4.31: mixed precision is Lightning's throughout.
    do_grad_scaling = False
    use_apex = False
    use_cuda_amp = False
    use_cpu_amp = False

    # ---- Initialization & Validation ----

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

    def create_accelerator_and_postprocess(self) -> None:
        """Make ``self.accelerator``, which hands everything to the Lightning strategy of the present run."""
        self.accelerator = Accelerator(self._current_strategy, sharing_options(self.args))
        # Evaluations put the plain function back, so this holds for the first alone, as in Hugging Face's trainer.
        self.gather_function = partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )
        self._note_strategy(self.lightning_trainer.strategy)

    # ---- Data Loading ----

    def get_train_dataloader(self) -> Any:
        """Return the training loader.

        Raises:
            ValueError: If there is no training set.
        """
        if self.train_dataset is None:
            raise ValueError("There is no training data: give `train_dataset` to the trainer, then call `train()`.")
        return self._get_dataloader(
            self.train_dataset, "training", self._train_batch_size, self._get_train_sampler, is_training=True
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the evaluation loader.

        Args:
            eval_dataset: A data set, or the name of one in ``eval_dataset``; by default the trainer's own.

        Raises:
            ValueError: If there is no evaluation set.
        """
        if eval_dataset is None and self.eval_dataset is None:
            raise ValueError("There is no evaluation data: give `eval_dataset` to the trainer or to `evaluate()`.")
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        cached = self.__dict__.setdefault("_eval_dataloaders", {})
        if self.args.dataloader_persistent_workers and key in cached:
            return cached[key]
        if isinstance(eval_dataset, str):
            eval_dataset = self._named_eval_dataset(eval_dataset)
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        loader = self._get_dataloader(dataset, "evaluation", self.args.eval_batch_size, self._get_eval_sampler)
        if self.args.dataloader_persistent_workers:
            cached[key] = loader
        return loader

    def _named_eval_dataset(self, name: str) -> Any:
        sets = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {}
        if name not in sets:
            raise InputKeyError(
                f"`eval_dataset={name!r}` names a set, but the trainer's `eval_dataset` holds "
                f"{', '.join(map(repr, sets)) or 'none by name'}; give one of them, or a data set."
            )
        return sets[name]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a loader over ``test_dataset``.

        Raises:
            InputTypeError: If there is no test set.
        """
        if test_dataset is None:
            raise InputTypeError("There is nothing to predict on: give a data set to `predict()`.")
        return self._get_dataloader(test_dataset, "test", self.args.eval_batch_size, self._get_eval_sampler)

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of examples behind a loader, estimated from its length where its data set has none."""
        dataset = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            return len(dataset)
        return len(dataloader) * int(self.args.per_device_train_batch_size)

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        return self.accelerator.prepare(
            self.datamodule.build_loader(
                dataset,
                description=description,
                batch_size=batch_size,
                sampler_fn=sampler_fn,
                is_training=is_training,
            )
        )

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        strategy = self.args.train_sampling_strategy
        if not has_length(dataset):
            if strategy in _NEED_LENGTHS:
                logger.warning(
                    "`train_sampling_strategy=%r` is ignored because the training data set has no length; examples "
                    "come in its own order.",
                    strategy,
                )
            return None
        if strategy == "group_by_length":
            return self._length_grouped(dataset, self.args.train_batch_size * self.args.gradient_accumulation_steps)
        if strategy == "batch_rebalance":
            return self._batch_rebalanced(dataset)
        return SequentialSampler(dataset) if strategy == "sequential" else RandomSampler(dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        if not has_length(eval_dataset):
            return None
        if self.args.train_sampling_strategy == "group_by_length":
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return self._length_grouped(
                eval_dataset, self.args.eval_batch_size, generator=torch.Generator().manual_seed(seed)
            )
        return SequentialSampler(eval_dataset)

    def _length_grouped(self, dataset: Any, batch_size: int, **options: Any) -> LengthGroupedSampler:
        return LengthGroupedSampler(
            batch_size,
            dataset=dataset,
            lengths=self._known_lengths(dataset),
            model_input_name=self._first_input_name(),
            **options,
        )

    def _batch_rebalanced(self, dataset: Any) -> BatchRebalanceSampler:
        lengths = self._known_lengths(dataset)
        if lengths is None:
            name = self._first_input_name() or "input_ids"
            if not isinstance(dataset[0], Mapping) or name not in dataset[0]:
                raise InputError(
                    f"`train_sampling_strategy='batch_rebalance'` needs the lengths of the examples, but they hold no "
                    f"`{name}`; add a column `{self.args.length_column_name}`, or choose another strategy."
                )
            lengths = [len(example[name]) for example in dataset]
        args = self.args
        return BatchRebalanceSampler(
            lengths=lengths,
            effective_batch_size=args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
            dp_size=args.world_size,
            grad_accum=args.gradient_accumulation_steps,
            rank=args.process_index,
            drop_last=args.dataloader_drop_last,
        )

    def _known_lengths(self, dataset: Any) -> list[int] | None:
        column = self.args.length_column_name
        if column not in (getattr(dataset, "column_names", None) or ()):
            return None
        lengths = dataset[column]
        return lengths.tolist() if isinstance(lengths, torch.Tensor) else list(lengths)

    def _first_input_name(self) -> str | None:
        names = getattr(self.processing_class, "model_input_names", None)
        return names[0] if names else None

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            parameters = list(inspect.signature(unwrap_peft_model(self.model).forward).parameters)
            # A column `label` becomes `labels` in the default collator.
            self._signature_columns = parameters + list({"label", "label_ids", *self.label_names})

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        return self.datamodule.remove_unused_columns(dataset, description)

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        return self.datamodule.removing_collator(data_collator, description)

    # ---- Optimizer & Scheduler & Learning rate ----

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make the optimizer and the schedule of a run of ``num_training_steps`` optimizer steps."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps=num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the optimizer that ``args.optim`` names, unless there is one."""
        if self.optimizer is None:
            model = self.model if model is None else model
            assert model is not None
            groups = parameter_groups(model, self.get_decay_parameter_names(model), self.args.weight_decay)
            optimizer_cls, kwargs = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(
                self.args, model
            )
            self.optimizer = build_optimizer(model, groups, optimizer_cls, kwargs)
        optimizer: torch.optim.Optimizer = self.optimizer
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Make the schedule that ``args.lr_scheduler_type`` names, unless there is one.

        Raises:
            InputError: If ``args.lr_scheduler_kwargs`` do not go with it (a ``TypeError`` too for an unknown one).
        """
        if self.lr_scheduler is None:
            try:
                self.lr_scheduler = get_scheduler(
                    self.args.lr_scheduler_type,
                    optimizer=self.optimizer if optimizer is None else optimizer,
                    num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
                    num_training_steps=num_training_steps,
                    scheduler_specific_kwargs=self.args.lr_scheduler_kwargs,
                )
            except (TypeError, ValueError) as error:
                kind = InputTypeError if isinstance(error, TypeError) else InputError
                raise kind(_unusable_schedule(self.args, error)) from error
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the class of the optimizer that ``args.optim`` names, and its keyword arguments.

        Raises:
            InputError: If its package is missing (an ``ImportError`` too), or other arguments do not go with it.
        """
        _check_optimizer_options(args.optim_args)
        try:
            chosen: tuple[Any, dict[str, Any]] = optimizer_cls_and_kwargs(args, model)
        except ImportError as error:
            raise MissingPackageError(_unusable_optimizer(args, error)) from error
        except ValueError as error:
            raise InputError(_unusable_optimizer(args, error)) from error
        return chosen

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that weight decay applies to."""
        return decay_parameter_names(model)

    def get_num_trainable_parameters(self) -> int:
        """Return the number of parameters that training changes."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of every parameter group.

        Raises:
            ValueError: If there is no optimizer yet.
        """
        return [group["lr"] for group in self._existing_optimizer().param_groups]

    def get_optimizer_group(self, param: Any = None) -> Any:
        """Return the parameter group of ``param``, or all groups without it.

        Raises:
            ValueError: If there is no optimizer yet.
        """
        groups = self._existing_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        return next((group for group in groups if any(member is param for member in group["params"])), None)

    def _existing_optimizer(self) -> torch.optim.Optimizer:
        if self.optimizer is None:
            raise ValueError("There is no optimizer yet; call `train()` or `create_optimizer()` first.")
        optimizer: torch.optim.Optimizer = self.optimizer
        return optimizer

    def _get_learning_rate(self) -> float:
        return learning_rate(self.optimizer, self.lr_scheduler)

    def _create_optimizer_and_scheduler_for(self, num_training_steps: int) -> None:
        """Make both for a new run, through whichever method a subclass overrides."""
        if self._created_lr_scheduler:
            # The schedule of an earlier run counts that run's steps.
            self.lr_scheduler = None
            self._created_lr_scheduler = False
        overridden = type(self).create_optimizer_and_scheduler is not Trainer.create_optimizer_and_scheduler
        if overridden:
            self.create_optimizer_and_scheduler(num_training_steps)
        else:
            self.create_optimizer()
            self.create_scheduler(num_training_steps=num_training_steps)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))

    # ---- Training ----

    @in_every_process
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
            self._place_model()
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
                ending_together(),
                quiet_lightning(),
                casting_forward(self.model, self.lightning_trainer.strategy),
                exiting_on_termination(self.lightning_trainer),
            ):
                connect(self.lightning_trainer.strategy)
                self.lightning_trainer.fit(self.module, datamodule=self.datamodule)
        except SystemExit as exit_:
            # Lightning turns an interrupt into an exit, which notebooks and callers that clean up cannot catch.
            if isinstance(exit_.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from exit_
            raise
        finally:
            self.accelerator.backward_now = at_once
            if self.place_model_on_device:
                self.model.to(self.args.device)
        if run.output is None:
            # The checkpoint was at the end already, so Lightning ran no loop and no hook.
            run.begin()
            run.finish()
        assert run.output is not None
        return run.output

    def _use_lightning_trainer(self, run: TrainingRun | None = None) -> None:
        """Make the ``lightning.Trainer`` of a run: one that has fitted goes on counting, so each run gets its own."""
        parts = self._lightning_parts
        bridge: list[Any] = [EventBridge(run)] if run is not None else []
        self.lightning_trainer = build_lightning_trainer(
            self.args,
            plan=run.plan if run is not None else None,
            model=self.__dict__.get("model"),
            callbacks=bridge + parts["callbacks"],
            loggers=parts["loggers"],
            plugins=parts["plugins"],
        )
        self.args.lightning_strategy = self.lightning_trainer.strategy

    def _current_strategy(self) -> Any:
        return self.lightning_trainer.strategy

    def _place_model(self) -> None:
        """Move the model to this process's device, unless others, that the strategy makes, are to have it."""
        if self.place_model_on_device and not makes_workers(self.lightning_trainer.strategy):
            self._move_model_to_device(self.model, self.args.device)

    def _enter_worker(self) -> None:
        """Take part in a run, in a process made for it."""
        self._use_lightning_trainer()
        connect(self.lightning_trainer.strategy)
        self._place_model()
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.is_local_process_zero()

    def __getstate__(self) -> dict[str, Any]:
        # The process that takes the trainer over makes a Lightning trainer of its own.
        return {name: value for name, value in self.__dict__.items() if name != "lightning_trainer"}

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

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput:
        """Log what the run came to, put the best model back and tell the callbacks that training ended.

        The name is fixed: the memory tracker of ``transformers`` knows its stages by the methods that call it.
        """
        logger.info("Training completed.")
        self._total_loss_scalar += self._tr_loss.item()
        num_steps = self.state.global_step - self._initial_global_step
        train_loss = self._total_loss_scalar / max(num_steps, 0.001)
        metrics = speed_metrics(
            "train",
            start_time,
            # The plan counts the whole schedule; this run may have made a part of its steps.
            num_samples=num_train_samples * num_steps / max(self.state.max_steps, 1),
            num_steps=num_steps,
        )
        self.store_flos()
        metrics["total_flos"] = self.state.total_flos
        metrics["train_loss"] = train_loss
        self._memory_tracker.stop_and_update_metrics(metrics)
        self.log(metrics)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        self._keep_only_best_and_last(trial)
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self._finish_current_push()
        return TrainOutput(self.state.global_step, train_loss, metrics)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Run one batch forward and have it differentiated.

        Args:
            model: The model to train.
            inputs: Model inputs of the batch.
            num_items_in_batch: What the losses of the accumulation window are a mean of, if known.

        Returns:
            The detached loss, scaled for accumulation, a scalar.
        """
        model.train()
        if hasattr(self.optimizer, "train") and callable(self.optimizer.train):
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(
                f"`compute_loss` returned {str(loss)[:80]!r} ({type(loss).__name__}); let it return the loss alone, a "
                "tensor with one element, and `(loss, outputs)` only if it was called with `return_outputs=True`."
            )
        self._empty_cache_if_due()
        if not self._is_scaled_for_accumulation(num_items_in_batch):
            loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()

    def _empty_cache_if_due(self) -> None:
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0 and torch.accelerator.is_available():
            torch.accelerator.empty_cache()

    def _is_scaled_for_accumulation(self, num_items_in_batch: Any) -> bool:
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        by_model = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return by_model or self.compute_loss_func is not None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a batch: the model's own, a label-smoothed one, or that of ``compute_loss_func``.

        Args:
            model: The model.
            inputs: Model inputs of the batch.
            return_outputs: Return ``(loss, outputs)``.
            num_items_in_batch: What the losses of the accumulation window are a mean of, if known.

        Raises:
            ValueError: If the model returns no loss.
        """
        takes_labels = self.label_smoother is not None or self.compute_loss_func is not None
        labels = inputs.pop("labels") if takes_labels and "labels" in inputs else None
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        loss, outputs = self._forward_with_loss(model, inputs, labels, num_items_in_batch)
        scales = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if self.args.average_tokens_across_devices and scales and num_items_in_batch is not None:
            loss *= self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _forward_with_loss(
        self, model: nn.Module, inputs: dict[str, Any], labels: Any, num_items_in_batch: Any
    ) -> tuple[Any, Any]:
        outputs = model(**inputs)
        if self.compute_loss_func is not None:
            return self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch), outputs
        if labels is not None:
            options = self._smoothing_options(model)
            return self.label_smoother(outputs, labels, num_items_in_batch=num_items_in_batch, **options), outputs
        return _loss_of(outputs, inputs), outputs

    def _smoothing_options(self, model: nn.Module) -> dict[str, bool]:
        name = type(unwrap_peft_model(self.accelerator.unwrap_model(model))).__name__
        return {"shift_labels": True} if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() else {}

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Return the contexts that the loss is computed in."""
        stack = contextlib.ExitStack()
        stack.enter_context(self.autocast_smart_context_manager())
        return stack

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> contextlib.AbstractContextManager[Any]:
        """Return no context: the model's forward casts by itself."""
        return contextlib.nullcontext()

    @taking_a_norm_or_none
    def _maybe_log_save_evaluate(
        self,
        tr_loss: torch.Tensor,
        grad_norm: torch.Tensor | float | None,
        model: nn.Module,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Log, evaluate and save, each if the control flags ask for it."""
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            self._log_progress(tr_loss, grad_norm, start_time, learning_rate)
        if self.control.should_evaluate:
            metrics = self._evaluate(trial, ignore_keys_for_eval)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _log_progress(
        self,
        tr_loss: torch.Tensor,
        grad_norm: torch.Tensor | float | None,
        start_time: float | None,
        learning_rate: float | None,
    ) -> None:
        loss_sum = self.accelerator.gather(tr_loss).mean().item()
        tr_loss -= tr_loss
        logs = {"loss": loss_sum / (self.state.global_step - self._globalstep_last_logged)}
        if grad_norm is not None:
            logs["grad_norm"] = grad_norm.item() if isinstance(grad_norm, torch.Tensor) else grad_norm
        logs["learning_rate"] = self._get_learning_rate() if learning_rate is None else learning_rate
        self._total_loss_scalar += loss_sum
        self._globalstep_last_logged = self.state.global_step
        self.store_flos()
        self.log(logs, start_time)

    # ---- Training Utilities ----

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device | None = None
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Fetch the batches of an accumulation window, and count what their losses are means of.

        Args:
            epoch_iterator: Batches of the epoch.
            num_batches: Batches in the window; fewer come at the end of the data.
            device: Where the count is put; by default the device of this process.

        Returns:
            The batches, and the number of label positions in them (``None`` where the model does not ask for it).
        """
        window = list(islice(epoch_iterator, num_batches))
        return window, self._get_num_items_in_batch(window, self.args.device if device is None else device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor | int | None:
        wanted = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        # A loss that knows nothing of the count is a mean of its batch, and is divided by the batches of the window.
        wanted = wanted and not leaves_out(self.compute_loss, "num_items_in_batch")
        if not wanted or not batch_samples or "labels" not in batch_samples[0]:
            return None
        try:
            count: Any = sum(self._counted_labels(batch).ne(-100).sum() for batch in batch_samples)
        except (TypeError, AttributeError):
            # Labels that are no tensors (boxes of object detection) are not counted.
            return None
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count.to(device)).sum()
        # The division by one makes the count a float, as Hugging Face's is.
        return count.to(device) / 1 if torch.is_tensor(count) else count

    def _counted_labels(self, batch: Mapping[str, Any]) -> Any:
        if "shift_labels" in batch:
            return batch["shift_labels"]
        # A causal loss never predicts the first position.
        return batch["labels"][..., 1:] if self._loss_shifts_labels else batch["labels"]

    def _prepare_input(self, data: Any) -> Any:
        return move_to_device(data, self.args.device)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        inputs = self._prepare_input(inputs)
        if len(inputs) == 0:
            self._set_signature_columns_if_needed()
            raise ValueError(
                "A batch came without anything in it; the model takes "
                f"{', '.join(self._signature_columns or [])}: name the data's columns so, or set "
                "`remove_unused_columns=False` and give a `data_collator`."
            )
        return inputs

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

    def get_sp_size(self) -> int:
        """Return over how many processes each sequence is split: 1, since nothing here does that."""
        return 1

    def get_cp_size(self) -> int:
        """Return over how many processes each sequence is split for attention: 1, since nothing here does that."""
        return 1

    def get_tp_size(self) -> int:
        """Return over how many processes each layer is split."""
        return int(getattr(self.model, "_tp_size", None) or 1)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return what runs forward in place of ``model``: itself, since the Lightning strategy wraps it."""
        return model

    def _track_num_input_tokens(self, inputs: Any) -> None:
        mode = self.args.include_num_input_tokens_seen
        if mode == "no":
            return
        main_input = getattr(self.model, "main_input_name", "input_ids")
        if main_input not in inputs:
            logger.warning(
                "`include_num_input_tokens_seen=%r` counts no tokens, because the batch holds no `%s`; name the input "
                "in a class attribute `main_input_name` of the model.",
                mode,
                main_input,
            )
            return
        tokens = _count_tokens(inputs, main_input, self.processing_class, padding=mode != "non_padding")
        self.state.num_input_tokens_seen += int(self.accelerator.gather(tokens.to(self.args.device)).sum().item())

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        if grad_norm is not None:
            return grad_norm
        # An infinite limit measures without clipping.
        return self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))

    # ---- Evaluation & Prediction ----

    @in_every_process
    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate and return the metrics.

        Args:
            eval_dataset: What to evaluate on instead of the trainer's ``eval_dataset``; a dict of data sets is
                evaluated one by one, with the key in the metrics' names.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
        """
        override = eval_dataset is not None
        datasets = eval_dataset if override else self.eval_dataset
        if isinstance(datasets, dict):
            metrics: dict[str, float] = {}
            for name, dataset in datasets.items():
                metrics |= self.evaluate(
                    eval_dataset=dataset if override else name,
                    ignore_keys=ignore_keys,
                    metric_key_prefix=f"{metric_key_prefix}_{name}",
                )
            return metrics
        self._memory_tracker.start()
        loader = self.get_eval_dataloader(datasets)
        start_time = time.time()
        output = self._loop_of_evaluations(
            loader,
            description="Evaluation",
            # Without metrics nobody looks at the predictions.
            prediction_loss_only=True if self.compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        measured = self._with_speed(output, metric_key_prefix, start_time)
        self.log(measured)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, measured)
        self._memory_tracker.stop_and_update_metrics(measured)
        return measured

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run ``dataloader`` through Lightning's evaluation loop, for ``evaluate`` and ``predict`` alike.

        Args:
            dataloader: Batches.
            description: ``"Evaluation"`` or ``"Prediction"``.
            prediction_loss_only: Keep the loss alone; by default what the arguments say.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
        """
        session = self._evaluation_session(
            dataloader,
            description=description,
            prediction_loss_only=prediction_loss_only,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        self.module.take(self.model)
        self._cast_for_full_evaluation()
        with casting_forward(self.model, self.lightning_trainer.strategy):
            output = run_evaluation(session)
        # A user who swapped it for one evaluation gets the usual one back.
        self.gather_function = self.accelerator.gather_for_metrics
        return output

    def _cast_for_full_evaluation(self) -> None:
        """Leave the model in half precision for good, as Hugging Face does; never while it trains."""
        dtype = full_evaluation_dtype(self.args)
        if dtype is not None and not self.is_in_train:
            self.model.to(dtype=dtype, device=self.args.device)

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        return EvaluationSession(self, dataloader, **options)

    def _with_speed(self, output: EvalLoopOutput, prefix: str, start_time: float) -> dict[str, float]:
        metrics = output.metrics
        assert metrics is not None, "an evaluation loop returns metrics, if only an empty dict"
        total_batch_size = self.args.eval_batch_size * self.args.world_size
        metrics.update(
            speed_metrics(
                prefix,
                start_time,
                num_samples=output.num_samples,
                num_steps=math.ceil(output.num_samples / total_batch_size),
            )
        )
        return metrics

    def end(self) -> None:
        """Take the processes of the run apart; the last call of a script that was started in several."""
        self.accelerator.end_training()

    def _backward_now(self, loss: torch.Tensor) -> None:
        self.lightning_trainer.strategy.backward(loss, None)

    @in_every_process
    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predict on ``test_dataset``, and return predictions, labels and the metrics where there are labels.

        Args:
            test_dataset: Data to predict on.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
        """
        self._memory_tracker.start()
        loader = self.get_test_dataloader(test_dataset)
        start_time = time.time()
        output = self._loop_of_evaluations(
            loader, description="Prediction", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
        )
        measured = self._with_speed(output, metric_key_prefix, start_time)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, measured)
        self._memory_tracker.stop_and_update_metrics(measured)
        return PredictionOutput(predictions=output.predictions, label_ids=output.label_ids, metrics=measured)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Run one batch forward without training on it.

        Args:
            model: The model to evaluate.
            inputs: Model inputs of the batch.
            prediction_loss_only: Return the loss alone.
            ignore_keys: Model outputs to leave out; by default what the model's configuration says.

        Returns:
            Loss (a scalar, or ``None`` without labels), logits and labels, each detached.
        """
        has_labels = bool(self.label_names) and all(inputs.get(name) is not None for name in self.label_names)
        return_loss = inputs.get("return_loss")
        return_loss = self.can_return_loss if return_loss is None else return_loss
        computes_loss = has_labels or (not self.label_names and return_loss)
        inputs = self._prepare_inputs(inputs)
        ignored = self._ignored_outputs() if ignore_keys is None else ignore_keys
        labels = _labels_of(inputs, self.label_names) if computes_loss else None
        with torch.no_grad():
            if computes_loss:
                num_items = self._get_num_items_in_batch([inputs], self.args.device)
                with self.compute_loss_context_manager():
                    loss, outputs = self._loss_and_outputs(model, inputs, num_items)
                loss = loss.detach().mean()
                logits = _logits_of(outputs, [*ignored, "loss"], skip_first=True)
            else:
                loss = None
                with self.compute_loss_context_manager():
                    outputs = model(**inputs)
                logits = _logits_of(outputs, ignored, skip_first=False)
        if prediction_loss_only:
            return loss, None, None
        logits = nested_detach(logits)
        return loss, logits[0] if len(logits) == 1 else logits, labels

    def _loss_and_outputs(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any) -> tuple[Any, Any]:
        if leaves_out(self.compute_loss, "return_outputs"):
            # The oldest form gives the loss alone, and may take labels out of the inputs.
            outputs = model(**inputs)
            return self.compute_loss(model, inputs), outputs
        loss, outputs = self.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        return loss, outputs

    def _ignored_outputs(self) -> list[str]:
        config = getattr(self.model, "config", None)
        return list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])) if config is not None else []

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        try:
            metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        except RuntimeError as error:
            if self.args.auto_find_batch_size and is_out_of_memory(error):
                # Not an error that a smaller training batch could cure.
                raise RuntimeError(
                    "Evaluation ran out of memory, and `auto_find_batch_size` reduces training batches only; set "
                    f"`per_device_eval_batch_size` (now {self.args.per_device_eval_batch_size}) to less."
                ) from error
            raise
        self._report_to_hp_search(trial, self.state.global_step, metrics)
        if steps_after_evaluation(self.lr_scheduler) and not skip_scheduler:
            self.lr_scheduler.step(self._metric_for_best_model(metrics))
        return metrics

    # ---- Checkpoint Saving ----

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = self.args.output_dir
        if self.hp_search_backend is None or trial is None:
            return folder
        backend = search_backend(self.hp_search_backend)
        return str(Path(folder) / (self.hp_name(trial) if self.hp_name else f"run-{backend.run_id(trial)}"))

    def _save_checkpoint(self, model: nn.Module, trial: Any, metrics: Any = None) -> None:
        """Write a checkpoint; ``metrics``, which older overrides give, were looked at when they were measured."""
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        write_checkpoint(
            self,
            self._get_output_dir(trial),
            f"checkpoint-{self.state.global_step}",
        )

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Note a new best value of ``metric_for_best_model``; tell whether there was one."""
        if self.args.metric_for_best_model is None:
            return False
        value = self._metric_for_best_model(metrics)
        is_better = np.greater if self.args.greater_is_better else np.less
        if self.state.best_metric is None:
            self.state.best_metric = float("-inf") if self.args.greater_is_better else float("inf")
        if not is_better(value, self.state.best_metric):
            return False
        self.state.best_metric = value
        if self.args.save_strategy != "no":
            self.state.best_global_step = self.state.global_step
        return True

    def _metric_for_best_model(self, metrics: dict[str, float]) -> float:
        name = self.args.metric_for_best_model
        key = name if name.startswith("eval_") else f"eval_{name}"
        if key not in metrics:
            raise InputKeyError(
                f"`metric_for_best_model={name!r}` is not among the metrics of the evaluation: {sorted(metrics)}; set "
                "it to one of them, or let `compute_metrics` return it."
            )
        return metrics[key]

    def _save_rng_state(self, output_dir: str) -> None:
        save_rng_state(output_dir, self.args)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save_optimizer_and_scheduler(self, output_dir)

    def _save_scaler(self, output_dir: str) -> None:
        save_scaler(self, output_dir)

    # ---- Checkpoint Resuming ----

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        logger.info(f"Loading model from {resume_from_checkpoint}.")
        self._issue_warnings_after_load(load_weights(self.model if model is None else model, resume_from_checkpoint))

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        assert best is not None
        logger.info(f"Loading best model from {best} (score: {self.state.best_metric}).")
        self._issue_warnings_after_load(load_weights(self.model, best))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        load_rng_state(checkpoint, self.args)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load_optimizer_and_scheduler(self, checkpoint)

    def _optimizer_state_to_load(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a checkpoint's optimizer as this trainer's takes it."""
        return state

    def _load_scaler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load_scaler(self, checkpoint)

    def _load_callback_state(self) -> None:
        restore_callbacks(self)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        announce_mismatch(self.model, load_result)

    def _keep_only_best_and_last(self, trial: Any) -> None:
        """With ``save_total_limit=1``, leave the best checkpoint alone on disk once training has ended."""
        run_folder, best = self._get_output_dir(trial), self.state.best_model_checkpoint
        if not self.args.should_save or best is None or self.args.save_total_limit != 1:
            return
        for checkpoint in sort_checkpoints(output_dir=run_folder, best_model_checkpoint=best):
            if not Path(checkpoint).samefile(best):
                logger.info(f"Deleting older checkpoint [{checkpoint}] due to args.save_total_limit")
                shutil.rmtree(checkpoint, ignore_errors=True)

    # ---- Saving & Serialization ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model so that ``from_pretrained`` reads it, with tokenizer and arguments; from one process.

        Args:
            output_dir: Folder; by default ``args.output_dir``.
        """
        refuse_sharded_weights(self.lightning_trainer.strategy)
        self._save(self.args.output_dir if output_dir is None else output_dir)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if not self.args.should_save:
            return
        folder = Path(self.args.output_dir if output_dir is None else output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        logger.info(f"Saving model checkpoint to {destination(output_dir or self.args.output_dir)}")
        save_weights(
            self.model,
            self.accelerator.unwrap_model(self.model),
            str(folder),
            state_dict=state_dict,
            is_main_process=self.args.should_save,
        )
        processor = self.processing_class
        if processor is None:
            processor = getattr(self.data_collator, "tokenizer", None)
            if processor is not None:
                logger.info("The tokenizer of the data collator is saved, since there is no `processing_class`.")
        if processor is not None:
            processor.save_pretrained(folder)
        save_arguments(self.args, str(folder))

    # ---- Logging & Metrics ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write ``logs`` into the history, to the callbacks, to the Lightning loggers and to Lightning's monitors.

        Args:
            logs: Values by name; the epoch is added.
            start_time: Start of training, for the token throughput.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                num_tokens = self.state.num_input_tokens_seen - self._initial_num_input_tokens_seen
                logs.update(speed_metrics("train", start_time, num_tokens=num_tokens))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)
        numbers = {key: value for key, value in logs.items() if isinstance(value, int | float)}
        publish_metrics(self.lightning_trainer, numbers)
        for lightning_logger in self._loggers:
            lightning_logger.log_metrics(numbers, step=self.state.global_step)

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print ``metrics`` as a table, from one process.

        Args:
            split: ``"train"``, ``"eval"`` or ``"test"``.
            metrics: Values by name.
        """
        _print_metrics(self, split, metrics)

    def metrics_format(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Return ``metrics`` with times, memory and operations in units a person reads."""
        formatted: dict[str, Any] = _format_metrics(metrics)
        return formatted

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write ``metrics`` to ``{split}_results.json`` in the output folder, from one process.

        Args:
            split: ``"train"``, ``"eval"``, ``"test"`` or ``"all"``.
            metrics: Values by name.
            combined: Add them to ``all_results.json`` too.
        """
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / f"{split}_results.json", metrics)
        if combined:
            everything = folder / "all_results.json"
            known = json.loads(everything.read_text(encoding="utf-8")) if everything.is_file() else {}
            _write_json(everything, {**known, **metrics})

    def save_state(self) -> None:
        """Write the trainer state to ``trainer_state.json`` in the output folder, from one process."""
        if self.is_world_process_zero():
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(str(Path(self.args.output_dir) / "trainer_state.json"))

    def store_flos(self) -> None:
        """Move the operations counted since the last call, of all processes, into the state."""
        flos = self.current_flos
        if self.args.world_size > 1:
            flos = self.accelerator.gather(torch.tensor(flos, device=self.args.device)).sum().item()
        self.state.total_flos += flos
        self.current_flos = 0

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """Return the operations of a forward and a backward pass over ``inputs``, 0 where they cannot be told."""
        main_input = getattr(self.model, "main_input_name", "input_ids")
        if main_input in inputs and hasattr(self.model, "num_parameters"):
            return int(6 * inputs[main_input].numel() * self.model.num_parameters(exclude_embeddings=True))
        return 0

    # ---- Hub Integration ----

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository named by ``args.hub_model_id``, from one process.

        Args:
            token: Token that may write; by default ``args.hub_token``.
            private: Whether a new repository is private; by default ``args.hub_private_repo``.
        """
        if self.is_world_process_zero():
            create_repository(self, token, private)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write a draft of a model card, ``README.md`` in the output folder, from one process.

        Args:
            language: Language of the model.
            license: License; by default that of the model fine-tuned.
            tags: Tags; those of a card that is there are kept.
            model_name: Name of the model; by default that of the output folder.
            finetuned_from: Model fine-tuned; by default where the model came from.
            tasks: Identifiers of its tasks.
            dataset_tags: Tags of its data sets.
            dataset: Identifiers of its data sets.
            dataset_args: Configurations of its data sets.
        """
        if self.is_world_process_zero():
            write_model_card(
                self,
                language=language,
                license=license,
                tags=tags,
                model_name=model_name,
                finetuned_from=finetuned_from,
                tasks=tasks,
                dataset_tags=dataset_tags,
                dataset=dataset,
                dataset_args=dataset_args,
            )

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model, write its card and upload the output folder.

        Args:
            commit_message: Message of the commit.
            blocking: Return only when the upload is done.
            token: Token that may write; by default ``args.hub_token``.
            revision: Branch to commit to; by default ``args.hub_revision``.
            private: Whether a new repository is private; by default ``args.hub_private_repo``.
            **kwargs: Arguments of :meth:`create_model_card`.

        Returns:
            What the hub says of the commit, or a future of that where ``blocking`` is false; ``None`` on processes
            other than the first.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        model_name = kwargs.pop("model_name", None)
        if model_name is None and self.args.should_save:
            model_name = (self.args.hub_model_id or Path(self.args.output_dir).name).split("/")[-1]
        token = self.args.hub_token if token is None else token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        own_tags = getattr(self.model, "model_tags", None)
        if own_tags is not None:
            kwargs["tags"] = _with_tags(kwargs.get("tags", []), own_tags)
        self.create_model_card(model_name=model_name, **kwargs)
        self._finish_current_push()
        return upload_run(
            self,
            commit_message=commit_message,
            token=token,
            revision=self.args.hub_revision if revision is None else revision,
            blocking=blocking,
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        upload_checkpoint(self, checkpoint_folder)

    def _finish_current_push(self) -> None:
        finish_uploads(self)

    # ---- Hyperparameter Search ----

    # mypy fears that `kwargs` hold a `self`.
    @in_every_process  # type: ignore[arg-type]
    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun] | None:
        """Train once for each of several choices of training arguments, and return the best choice.

        A trial writes into ``run-<id>`` below ``args.output_dir``. Afterwards ``args`` are those of the last trial,
        and ``model`` is gone.

        Args:
            hp_space: Returns the training arguments of a trial (optuna), or the space they are drawn from (ray,
                wandb; called with ``None``); by default the space of transformers.
            compute_objective: Makes the objective, or several, of the metrics of an evaluation; by default the sum
                of all metrics, or the loss where there are no others. In the place of NaN the search gets the worst
                finite value.
            n_trials: Trials to run.
            direction: ``"minimize"`` or ``"maximize"``; a list of them for several objectives.
            backend: ``"optuna"``, ``"ray"`` or ``"wandb"``; by default the first that is installed.
            hp_name: Names a trial, and with it its folder.
            **kwargs: What the backend itself takes: ``optuna.create_study`` and ``Study.optimize``,
                ``ray.tune.run``, or ``sweep_id``, ``project``, ``entity``, ``name`` and ``metric`` of wandb.

        Returns:
            The best trial; a list of the best ones for several objectives. Of several processes, the first alone
            knows them: the others return ``None``.

        Raises:
            RuntimeError: If the backend is not installed, or there is no ``model_init``.
            ValueError: If there is no such backend or direction.
        """
        chosen = installed_backend(backend)
        if self.model_init is None:
            raise InputRuntimeError(
                "To use hyperparameter search, you need to pass your model through a model_init function."
            )
        directions = checked_directions(direction)
        if isinstance(direction, list) and not chosen.takes_several_directions:
            raise InputError(
                f"`direction={direction!r}` is a list, but {chosen.name} optimises one objective; set `direction` to "
                "'minimize' or 'maximize', or `backend` to 'optuna'."
            )
        if self.args.world_size > 1 and not chosen.spans_processes:
            raise InputError(
                f"The run is placed on {self.args.world_size} processes, and {chosen.name} trains each trial on one; "
                "set `backend='optuna'`, or `devices=1` and start one process."
            )
        self.hp_search_backend = HPSearchBackend(chosen.name)
        self.hp_space = chosen.default_hp_space if hp_space is None else hp_space
        self.hp_name = hp_name
        self.compute_objective = FiniteObjective(compute_objective or default_compute_objective, directions)
        try:
            return chosen.run(self, n_trials, direction, **kwargs)
        finally:
            self.hp_search_backend = None

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

    def _hp_search_setup(self, trial: Any) -> None:
        """Give the training arguments the values that ``trial`` chooses."""
        self._trial = trial
        if self.hp_search_backend is None or trial is None:
            return
        for name, value in search_backend(self.hp_search_backend).hyperparameters(self, trial).items():
            if not hasattr(self.args, name):
                logger.warning(
                    f"The hyperparameter `{name}` is no field of `TrainingArguments`; only `model_init` sees it."
                )
                continue
            present = getattr(self.args, name)
            setattr(self.args, name, value if present is None else type(present)(value))
        self._train_batch_size = self.args.train_batch_size
        self.create_accelerator_and_postprocess()

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        if self.hp_search_backend is None or trial is None:
            return
        metrics = metrics.copy()
        self.objective = self.compute_objective(metrics)
        search_backend(self.hp_search_backend).report(self, trial, step, metrics)

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        save_trial_checkpoint(self, checkpoint_dir)

    # ---- Callbacks ----

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Add a callback, given as an instance or as a class to instantiate."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> TrainerCallback | None:
        """Take out a callback, or the first of a class, and return it; ``None`` where there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Take out a callback, or the first of a class."""
        self.callback_handler.remove_callback(callback)

    # ---- Utilities ----

    def is_local_process_zero(self) -> bool:
        """Tell whether this is the first process of its machine."""
        return bool(self.args.local_process_index == 0)

    def is_world_process_zero(self) -> bool:
        """Tell whether this is the first process of all."""
        return bool(self.args.process_index == 0)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if getattr(model, "hf_device_map", None) is not None:
            logger.warning("The layers of the model lie on several devices already, so it stays where it is.")
            return
        model.to(device)

    # ---- Lightning ----

    @property
    def _runs_own_backward(self) -> bool:
        """Whether a subclass has a training step of its own, whose backward passes run where it calls for them."""
        return type(self).training_step is not Trainer.training_step or "training_step" in self.__dict__

    @property
    def tokenizer(self) -> Any:
        """The ``processing_class``."""
        warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
        self.processing_class = tokenizer

    def prediction_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run ``evaluation_loop``; a subclass that overrides this sets ``use_legacy_prediction_loop=True``."""
        warn_of_old_name("Trainer.prediction_loop", "Trainer.evaluation_loop")
        return self.evaluation_loop(
            dataloader,
            description,
            prediction_loss_only=prediction_loss_only,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )

    @property
    def _loop_of_evaluations(self) -> Callable[..., EvalLoopOutput]:
        """The loop that ``evaluate`` and ``predict`` run."""
        wants_old_loop = getattr(self.args, "use_legacy_prediction_loop", False)
        is_overridden = type(self).prediction_loop is not Trainer.prediction_loop
        return self.prediction_loop if wants_old_loop and is_overridden else self.evaluation_loop

    def init_git_repo(self, at_init: bool = False) -> None:
        """Make the repository on the hub; there is no local clone any more."""
        warn_of_old_name("Trainer.init_git_repo", "Trainer.init_hf_repo")
        self.init_hf_repo()

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        return None if tensors is None else self.accelerator.gather(tensors)

    def _pad_across_processes(self, tensor: Any, pad_index: int = -100) -> Any:
        return self.accelerator.pad_across_processes(tensor, dim=1, pad_index=pad_index)

    def _gather_and_numpify(self, tensors: Any, name: str) -> Any:
        return None if tensors is None else nested_numpify(self._nested_gather(tensors, name))

    def _sorted_checkpoints(
        self, output_dir: str | None = None, checkpoint_prefix: str = "checkpoint", use_mtime: bool = False
    ) -> list[str]:
        checkpoints: list[str] = sort_checkpoints(
            output_dir=output_dir or self.args.output_dir,
            checkpoint_prefix=checkpoint_prefix,
            use_mtime=use_mtime,
            best_model_checkpoint=self.state.best_model_checkpoint,
        )
        return checkpoints

    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: str | None = None) -> None:
        rotate_checkpoints(
            output_dir=output_dir or self.args.output_dir,
            save_total_limit=self.args.save_total_limit,
            best_model_checkpoint=self.state.best_model_checkpoint,
            use_mtime=use_mtime,
        )

    def _note_placement(self, model: nn.Module) -> None:
        """Note where ``model`` lies, under the names that subclasses read."""
        self.is_model_parallel = _is_spread(model, self.args.device)
        placed = self.args.place_model_on_device
        self.place_model_on_device = not self.is_model_parallel if placed is None else placed

    def _note_strategy(self, strategy: Any) -> None:
        """Note what ``strategy`` is, under the names that subclasses read."""
        self.is_deepspeed_enabled = isinstance(strategy, DeepSpeedStrategy)
        self.is_fsdp_enabled = isinstance(strategy, FSDPStrategy)


def _progress_callback() -> type[TrainerCallback]:
    if is_in_notebook():
        from portico.hf_compat import NotebookProgressCallback

        return NotebookProgressCallback
    return ProgressCallback


def _loss_of(outputs: Any, inputs: Mapping[str, Any]) -> Any:
    if isinstance(outputs, dict):
        if "loss" not in outputs:
            raise ValueError(
                f"The model returned no loss, only {', '.join(outputs)}; it received {', '.join(inputs)}. Give it "
                "labels under the name it takes, load one of the `AutoModelFor...` classes if it has no head for a "
                "task, or override `compute_loss`."
            )
        return outputs["loss"]
    return outputs[0]


def _logits_of(outputs: Any, ignored: list[str], *, skip_first: bool) -> Any:
    if isinstance(outputs, dict):
        return tuple(value for key, value in outputs.items() if key not in ignored)
    return outputs[1:] if skip_first else outputs


def _labels_of(inputs: Mapping[str, Any], names: list[str]) -> Any:
    # Taken before the loss is computed, which may pop them.
    labels = nested_detach(tuple(inputs.get(name) for name in names))
    return labels[0] if len(labels) == 1 else labels


_NEED_LENGTHS = ("group_by_length", "batch_rebalance")


def _check_optimizer_options(options: Any) -> None:
    parts = [part for part in (options or "").replace(" ", "").split(",") if part.count("=") != 1]
    if options and parts:
        raise InputError(
            f"`optim_args={options!r}` has the part {parts[0]!r}, which is not of the form `name=value`; separate the "
            "options of the optimizer by commas, as in 'momentum=0.9,nesterov=true'."
        )


def _unusable_optimizer(args: Any, error: Exception) -> str:
    options = f" with `optim_args={args.optim_args!r}`" if args.optim_args else ""
    name = getattr(args.optim, "value", args.optim)
    reason = str(error).rstrip(".")
    return f"`optim={name!r}`{options} cannot be used: {reason}. Or set `optim` to another name, as 'adamw_torch'."


def _unusable_schedule(args: Any, error: Exception) -> str:
    name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    reason = str(error).rstrip(".")
    return (
        f"`lr_scheduler_type={name!r}` with `lr_scheduler_kwargs={args.lr_scheduler_kwargs!r}` cannot be used: "
        f"{reason}. Set `lr_scheduler_kwargs` to what this schedule takes, or choose another one."
    )


def _count_tokens(inputs: Any, main_input: str, processing_class: Any, *, padding: bool) -> Any:
    if not padding and "attention_mask" in inputs:
        return inputs["attention_mask"].sum()
    pad_token_id = getattr(processing_class, "pad_token_id", None)
    if not padding and pad_token_id is not None:
        return (inputs[main_input] != pad_token_id).sum()
    if not padding:
        logger.warning(
            "`include_num_input_tokens_seen='non_padding'` counts padding too, because there is neither an "
            "`attention_mask` in the batch nor a `pad_token_id`; give the trainer its `processing_class`."
        )
    return torch.tensor(inputs[main_input].numel())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4, sort_keys=True), encoding="utf-8")


def newer_processing_class(processing_class: Any, tokenizer: Any) -> Any:
    """Return what takes the place of ``tokenizer``, the older spelling of ``processing_class``.

    Raises:
        InputError: If both are given and differ.
    """
    if tokenizer is None:
        return processing_class
    warn_of_old_name("tokenizer", "processing_class")
    if processing_class is not None and processing_class is not tokenizer:
        raise InputError(
            "`processing_class` and `tokenizer` are two spellings of one argument, and different objects were given; "
            "give `processing_class` alone."
        )
    return tokenizer


def _is_spread(model: nn.Module, device: torch.device) -> bool:
    """Tell whether ``from_pretrained(device_map=...)`` put layers elsewhere than on ``device``."""
    layers: Any = getattr(model, "hf_device_map", None) or {}
    devices = {place for place in layers.values() if place not in ("cpu", "disk")}
    return len(devices) > 1 or any(torch.device(place) != device for place in devices)


def _with_tags(tags: str | list[str], more: list[str]) -> list[str]:
    known = [tags] if isinstance(tags, str) else tags
    return known + [tag for tag in more if tag not in known]
