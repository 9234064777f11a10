"""``Trainer``: Hugging Face's API, Lightning's loops.

``Trainer`` has the methods of ``transformers.Trainer`` in the same order, so a subclass finds each hook where it
expects it. The methods are short: the rest of the trainer is its core (``self._portico``, :mod:`portico.loop.core`),
the events of a run are in :mod:`portico.loop.run`, evaluation is in :mod:`portico.loop.evaluation`, files in
:mod:`portico.checkpoint` and processes in :mod:`portico.distributed`.
"""

import contextlib
import functools
import inspect
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import WEIGHTS_NAME, TrainerCallback, TrainerControl, TrainerState

from portico import deprecated, hp_search, hub, observers
from portico.arguments import TrainingArguments, build_transformers_arguments
from portico.checkpoint import resume, weights, writer
from portico.checkpoint.engine_files import gather_weights, lacks_weights, load_engine, save_engine
from portico.checkpoint.manifest import refresh_manifest
from portico.compat import transformers as hf_compat
from portico.compat.lightning import averaged_weights, is_fast_dev_run, launches_workers, overfits, publish_metrics
from portico.compat.transformers import (
    EvalLoopOutput,
    HPSearchBackend,
    PredictionOutput,
    TrainOutput,
    has_length,
    logger,
)
from portico.compat.tree import map_tensors
from portico.data.loaders import get_user_batch_size, move_to_device
from portico.distributed.accelerator import Accelerator
from portico.distributed.deepspeed import EngineStrategy
from portico.distributed.model_parallel import ShardedStrategy, is_sharded
from portico.distributed.precision import autocast_forward, full_evaluation_dtype
from portico.distributed.processes import call_in_workers, connect_early
from portico.distributed.sequence import sequence_sharing
from portico.distributed.settings import accelerator_settings, dataloader_config
from portico.distributed.strategies import refuse_sharded_weights
from portico.errors import InputError, InputKeyError, InputRuntimeError, InputTypeError
from portico.loop import model_setup, optim
from portico.loop.core import TrainerCore
from portico.loop.datamodule import build_eval_sampler, build_train_sampler
from portico.loop.evaluation import run_evaluation
from portico.loop.failures import explain_call, explain_failure
from portico.loop.metrics import check_metrics, plain_values
from portico.loop.outputs import count_labels, count_tokens, labels_of, logits_of, set_training
from portico.loop.overrides import LEFT_OUT, adapt_overrides, warn_of_misspelt_hooks
from portico.loop.plan import ResumePoint, RunPlan, limit_batches
from portico.loop.run import fresh_state, log_overridden_arguments
from portico.loop.validation import (
    check_callback,
    check_collator,
    check_consistency,
    check_lightning_kwargs,
    check_part_types,
    prepare_arguments,
    refuse_old_order,
    refuse_unevaluable,
)
from portico.trust.disk import read_text, staged_folder, write_text
from portico.trust.files import save_tensors
from portico.trust.names import data_only, made_part
from portico.unknown_arguments import names_unknown_arguments

if TYPE_CHECKING:
    from portico.compat.annotations import (
        Batch,
        Callbacks,
        ComputeLoss,
        ComputeMetrics,
        DataCollator,
        EvalExamples,
        Examples,
        Loader,
        Nested,
        NumItems,
        Optimizers,
        ProcessingClass,
        Scheduler,
        Trial,
    )
    from portico.loop.corrections import Corrections
    from portico.loop.datamodule import TrainerDataModule
    from portico.loop.module import TrainerModule


_OMITTED: Any = object()

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
SomeTrainer = TypeVar("SomeTrainer", bound="Trainer")


def _run_state(name: str) -> Any:
    """Return a property that reads and writes ``name`` of the current run.

    Overrides written for ``transformers.Trainer`` read and write the sums of a run on the trainer.
    """
    return property(
        lambda trainer: getattr(trainer._portico.module.run, name),
        lambda trainer, value: setattr(trainer._portico.module.run, name, value),
    )


class _OfCore(Generic[T]):
    """An attribute of the core that the trainer shows; a subclass may use its name for something else."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, trainer: "Trainer | None", owner: type | None = None) -> T:
        return cast(T, self if trainer is None else getattr(trainer._portico, self.name))


def _join_cores(cores: list[type[TrainerCore]], owner: type) -> type[TrainerCore]:
    """Return a class of cores that has what each of ``cores`` has, for a trainer class with several bases."""
    kinds = [kind for kind in dict.fromkeys(cores) if sum(issubclass(core, kind) for core in set(cores)) == 1]
    if len(kinds) == 1:
        return kinds[0]
    # Where it is found, for a pickle of the trainer.
    name = {"__module__": owner.__module__, "__qualname__": f"{owner.__qualname__}._Trainer__core_class"}
    return type("Core", tuple(kinds), name)


def _unpack(pair: Any) -> Any:
    return tuple(pair) if isinstance(pair, Iterable) else pair


def run_in_workers(method: Callable[Concatenate[SomeTrainer, P], R]) -> Callable[Concatenate[SomeTrainer, P], R]:
    """Make a trainer method run in worker processes if the strategy launches workers for each call.

    The first worker sends back the result, the model's weights and the attributes that its core names; other
    changes that user code makes in a worker, for example to callbacks, are lost. An error in a worker is raised here.
    """

    @functools.wraps(method)
    def run(trainer: SomeTrainer, *args: P.args, **kwargs: P.kwargs) -> R:
        core = trainer._portico
        if core.lightning_trainer is None:
            # The trainer was pickled, for example into a trial of Ray Tune.
            core.use_lightning_trainer()
        strategy = core.lightning_trainer.strategy
        if not launches_workers(strategy):
            return method(trainer, *args, **kwargs)
        call = partial(_call_in_worker, trainer, partial(run, trainer, *args, **kwargs))
        result, attributes, weights = call_in_workers(strategy, call)
        trainer.__dict__.update(attributes)
        if weights is None:
            # A hyperparameter search released the model of its last trial.
            trainer.model = trainer.model_wrapped = None  # type: ignore[assignment]
        else:
            trainer.model.load_state_dict(weights)
        return result

    # mypy compares the name of the first argument, which is never passed by keyword.
    return run  # type: ignore[return-value]


def _call_in_worker(
    trainer: "Trainer", call: Callable[[], R]
) -> tuple[R, dict[str, object], dict[str, torch.Tensor] | None]:
    """Return the result of ``call`` with the trainer's attributes and weights, which only the first worker sends."""
    trainer._portico.enter_worker()
    result = call()
    attributes = {name: getattr(trainer, name) for name in trainer._portico.carried_from_workers}
    weights = None
    if trainer.model is not None and trainer.args.local_process_index == 0:
        weights = {name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()}
    trainer.accelerator.wait_for_everyone()
    return result, attributes, weights


@data_only
class Trainer:
    """The Hugging Face ``Trainer`` on top of Lightning.

    It has the arguments, methods, callbacks and results of ``transformers.Trainer`` 5.24; on the CPU the numbers are
    equal bit for bit. Contradictory arguments raise ``ValueError`` in the constructor, before any work is done.

    Args:
        model: The model; ``forward`` takes the keys of a batch and returns the loss first, or under ``"loss"``, if it
            gets labels.
        args: Training arguments of either library; by default ``TrainingArguments("tmp_trainer")``.
        data_collator: Makes a batch, a dict of tensors ``[batch, ...]``, from a list of examples. By default it pads
            with ``processing_class``, or stacks the examples if there is none.
        train_dataset: Examples; or a ``DataLoader`` or ``LightningDataModule``, whose loaders are used unchanged:
            their batch size, sampler, collator and workers override the training arguments.
        eval_dataset: As ``train_dataset``, or a dict of named sets, each evaluated separately; several loaders of a
            data module are evaluated like a dict, by name or number.
        processing_class: Tokenizer or processor of the data; it pads batches and is saved with the model.
        model_init: Function that returns a new model for each run, used instead of ``model``; may take the trial of
            a hyperparameter search.
        compute_loss_func: ``(outputs, labels, num_items_in_batch) -> loss``, used instead of the model's loss.
            ``num_items_in_batch`` counts the labels in the accumulation window over all processes: divide a sum by
            it.
        compute_metrics: A function of an ``EvalPrediction``, or a ``torchmetrics.Metric``, a ``MetricCollection`` or
            a dict of metrics by name. Metrics are updated batch by batch with ``(logits, labels)``, after
            ``preprocess_logits_for_metrics``, so ``evaluate`` keeps no logits (``predict`` still returns them). Their
            results carry the usual prefix; an unnamed metric is named after its class, and a result that is not
            a number becomes a nested list (``ClasswiseWrapper`` names the entries). Metrics of torchmetrics get the
            logits in the shape they take: classes second (token classification), without a last dimension of 1
            (regression), shifted to the next token (causal models). Labels of -100 reach the metric: set its
            ``ignore_index=-100``. Your own metric classes get what the model returns.
        callbacks: Callbacks of transformers, as instances or classes, called after the built-in callbacks.
        optimizers: Optimizer and scheduler to use instead of the ones named in the training arguments.
        optimizer_cls_and_kwargs: Optimizer class and its arguments, used instead of ``args.optim``.
        preprocess_logits_for_metrics: ``(logits, labels) -> logits``, applied to each batch before outputs are kept.
        tokenizer: Older spelling of ``processing_class``.
        lightning_callbacks: Lightning callbacks; they see an ordinary Lightning run.
        loggers: Lightning loggers; they receive what Hugging Face logs.
        plugins: Lightning plugins.
        lightning_kwargs: Further arguments of ``lightning.Trainer``: ``fast_dev_run``, ``limit_train_batches``,
            ``limit_val_batches``, ``overfit_batches``, ``profiler``, ``detect_anomaly``, ``max_time`` and others.
            Arguments that a training argument already sets are refused.

    Attributes:
        state (TrainerState): Step and epoch counts, log history, best metric, as in ``trainer_state.json``.
        control (TrainerControl): Flags that callbacks set: log, evaluate, save, stop.
        accelerator (Accelerator): accelerate's methods, implemented by the Lightning strategy.
        lightning_trainer: The ``lightning.Trainer`` of the current or the last run.
        module (TrainerModule): The ``LightningModule`` around the model.
        datamodule (TrainerDataModule): The ``LightningDataModule`` around the datasets.
        is_model_parallel (bool): Whether the model's layers are spread over several devices.
        place_model_on_device (bool): Whether the trainer moves the model to the device of this process.
        hub_model_id: Full name of the repository, once it exists.
        push_in_progress: Uploads started during training.
    """

    args: TrainingArguments
    model: nn.Module
    model_wrapped: nn.Module
    model_init: Callable[..., nn.Module] | None
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    processing_class: "ProcessingClass | None"
    label_names: list[str]
    label_smoother: Any
    can_return_loss: bool
    model_accepts_loss_kwargs: bool
    is_model_parallel: bool
    place_model_on_device: bool
    current_gradient_accumulation_steps: int
    _train_batch_size: int
    _loss_shifts_labels: bool
    # Any object with the right methods: some libraries' optimizers and schedulers do not inherit from torch's.
    optimizer: Any
    lr_scheduler: Any
    callback_handler: hf_compat.CallbackHandler
    state: TrainerState
    control: TrainerControl
    gather_function: Callable[..., Any]
    # Whether `compute_loss` divides by the accumulation window itself; `None` decides from the model.
    loss_is_scaled_for_ga: bool | None = None
    hub_model_id: str | None = None
    push_in_progress: Any = None
    hp_space: Callable[["Trial"], dict[str, Any]]
    hp_name: Callable[["Trial"], str] | None = None
    hp_search_backend: HPSearchBackend | None = None
    compute_objective: Callable[[dict[str, float]], Any]
    objective: Any = None
    _signature_columns: list[str] | None = None
    # Sums of the current run, under the names that overrides of `_maybe_log_save_evaluate` and `log` use.
    _tr_loss = _run_state("tr_loss")
    _total_loss_scalar = _run_state("total_loss_scalar")
    _globalstep_last_logged = _run_state("globalstep_last_logged")
    _initial_global_step = _run_state("initial_global_step")
    _initial_num_input_tokens_seen = _run_state("initial_num_input_tokens_seen")
    # DeepSpeed's engine, from the first training on.
    deepspeed: Any = None
    # Read by subclasses: no strategy here runs FSDP on XLA.
    is_fsdp_xla_enabled = is_fsdp_xla_v1_enabled = is_fsdp_xla_v2_enabled = False
    is_distributed_loading_by_transformers = False
    _created_lr_scheduler = False
    # Older names: copies of `training_step` from transformers 4.31 read the flags, of mixed precision that is
    # Lightning's here.
    do_grad_scaling = use_apex = use_cuda_amp = use_cpu_amp = False
    sharded_ddp = None
    tokenizer = deprecated.tokenizer
    prediction_loop = deprecated.prediction_loop
    init_git_repo = deprecated.init_git_repo
    _nested_gather = deprecated.nested_gather
    _pad_across_processes = deprecated.pad_across_processes
    _gather_and_numpify = deprecated.gather_and_numpify
    _sorted_checkpoints = deprecated.sorted_checkpoints
    current_flos: float = 0
    _portico: TrainerCore
    __core_class: type[TrainerCore] = TrainerCore
    # In seconds, of an evaluation before any training; it stays in the metrics of later ones, as in transformers.
    model_preparation_time: float | None = None

    # ---- Initialization & Validation ----

    @names_unknown_arguments
    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: "DataCollator | None" = None,
        train_dataset: "Examples | None" = None,
        eval_dataset: "EvalExamples | None" = None,
        processing_class: "ProcessingClass | None" = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: "ComputeLoss | None" = None,
        compute_metrics: "ComputeMetrics | None" = None,
        callbacks: "Callbacks | None" = None,
        optimizers: "Optimizers" = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        *,
        tokenizer: "ProcessingClass | None" = None,
        lightning_callbacks: list[Callback] | None = None,
        loggers: list[Logger] | None = None,
        plugins: list[Any] | None = None,
        lightning_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        warn_of_misspelt_hooks(type(self), Trainer)
        refuse_old_order(compute_metrics)
        # transformers unpacks both, whatever holds them.
        optimizers, optimizer_cls_and_kwargs = map(_unpack, (optimizers, optimizer_cls_and_kwargs))
        check_part_types(model, model_init, callbacks, optimizers, lightning_callbacks, loggers, plugins)
        lightning_kwargs = check_lightning_kwargs(lightning_kwargs)
        self.args = prepare_arguments(args)
        for observer in observers.active:
            observer.on_trainer_init(self)
        options = observers.options()
        added = [made_part(part) for part in options.callbacks]
        added_loggers = [model_setup.make_logger(logger, self.args.output_dir) for logger in options.loggers]
        callbacks = [*(callbacks or []), *(part for part in added if not isinstance(part, Callback))]
        self._portico = self.__core_class(
            self,
            lightning_kwargs,
            callbacks=[
                *(lightning_callbacks or []),
                *(callback for callback in added if isinstance(callback, Callback)),
            ],
            loggers=[*(loggers or []), *added_loggers],
            plugins=list(plugins or []),
        )
        self._portico.seed_everything()
        # The tracker knows its stage by the name of the method that starts it, here `__init__`.
        self._memory_tracker = hf_compat.TrainerMemoryTracker(self.args.skip_memory_metrics)
        self._memory_tracker.start()
        self.is_in_train = False
        self.model = model  # type: ignore[assignment]  # None until `model_init` has made one
        self._portico.use_lightning_trainer()
        connect_early(self._portico.lightning_trainer.strategy)
        self.create_accelerator_and_postprocess()
        self._portico.adopt_model(model, model_init)
        processing_class = deprecated.newer_processing_class(processing_class, tokenizer)
        self._portico.adopt_data(data_collator, train_dataset, eval_dataset, processing_class)
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.neftune_noise_alpha = self.args.neftune_noise_alpha
        self._validate_args()
        self._portico.start_callbacks(callbacks)
        self._memory_tracker.stop_and_update_metrics()

    def __init_subclass__(cls, core: type[TrainerCore] | None = None, **options: Any) -> None:
        # A trainer that needs another core names it: `class MRCTrainer(Trainer, core=AnswerCore)`.
        super().__init_subclass__(**options)
        cores = [base.__core_class for base in cls.__bases__ if issubclass(base, Trainer)]
        cls.__core_class = core or _join_cores(cores, cls)
        adapt_overrides(cls, Trainer)

    def _validate_args(self) -> None:
        if hasattr(self.data_collator, "collate_batch"):  # of transformers 2, which its constructor refuses
            check_collator(self.data_collator)
        evaluates = self.args.eval_strategy != "no" or self.args.eval_on_start
        check_metrics(self._portico.trainer, evaluates=evaluates or self.args.batch_eval_metrics)
        if evaluates:
            refuse_unevaluable(self.args)
        getters = ("get_eval_dataloader", "_get_dataloader", "evaluate", "_evaluate")
        check_consistency(
            self._portico.trainer, reads_eval_dataset=evaluates and not self._portico.overrides(*getters)
        )
        log_overridden_arguments(self._portico.trainer)

    def create_accelerator_and_postprocess(self) -> None:
        """Create ``self.accelerator``, which delegates to the Lightning strategy of the current run."""
        self.accelerator = Accelerator(
            partial(attrgetter("lightning_trainer.strategy"), self._portico), dataloader_config(self.args)
        )
        self.accelerator.start(accelerator_settings(self.args)["gradient_accumulation_kwargs"])
        # Applies to the first evaluation only: as in transformers 5.23, `evaluation_loop` ends by resetting
        # `gather_function` to the plain method.
        self.gather_function = partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )
        strategy = self._portico.lightning_trainer.strategy
        self.is_deepspeed_enabled = isinstance(strategy, DeepSpeedStrategy | EngineStrategy)
        self.is_fsdp_enabled = isinstance(strategy, FSDPStrategy | ShardedStrategy)

    # ---- Data Loading ----

    def get_train_dataloader(self) -> "Loader":
        """Return the training loader."""
        if self.train_dataset is None:
            raise InputError(
                "Trainer: training requires a train_dataset. Give `train_dataset` to the trainer, then call `train()`."
            )
        return self._get_dataloader(
            self.train_dataset, "training", self._train_batch_size, self._get_train_sampler, is_training=True
        )

    def get_eval_dataloader(self, eval_dataset: "str | EvalExamples | None" = None) -> "Loader":
        """Return a loader over ``eval_dataset``, given as examples or by name; by default the trainer's set."""
        if eval_dataset is None and self.eval_dataset is None:
            raise InputError(
                "Trainer: evaluation requires an eval_dataset. Give one to the trainer or to `evaluate()`."
            )
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        cached: dict[str, Loader] = self.__dict__.setdefault("_eval_dataloaders", {})
        # As in transformers: otherwise every evaluation would start workers that stay.
        if self.args.dataloader_persistent_workers and key in cached:
            return cached[key]
        if isinstance(eval_dataset, str):
            sets: Mapping[str, Examples] = self.eval_dataset if isinstance(self.eval_dataset, dict) else {}
            if eval_dataset not in sets:
                raise InputKeyError(
                    f"`eval_dataset={eval_dataset!r}` names a set, but the trainer's `eval_dataset` holds "
                    f"{', '.join(map(repr, sets)) or 'none by name'}; give one of them, or a dataset."
                )
            eval_dataset = sets[eval_dataset]
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        loader = self._get_dataloader(dataset, "evaluation", self.args.eval_batch_size, self._get_eval_sampler)
        if self.args.dataloader_persistent_workers:
            cached[key] = loader
        return loader

    def get_test_dataloader(self, test_dataset: "Examples") -> "Loader":
        """Return a loader over ``test_dataset``."""
        if test_dataset is None:
            raise InputTypeError("There is nothing to predict on; give a dataset to `predict()`.")
        return self._get_dataloader(test_dataset, "test", self.args.eval_batch_size, self._get_eval_sampler)

    def num_examples(self, dataloader: "Loader") -> int:
        """Return the number of examples in a loader, estimated from its length if the dataset has no length."""
        dataset: Any = getattr(dataloader, "dataset", None)
        return len(dataset) if has_length(dataset) else len(dataloader) * self.args.per_device_train_batch_size

    def _get_dataloader(
        self,
        dataset: "Examples",
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> "Loader":
        if isinstance(dataset, DataLoader):
            given: Any = self.accelerator.prepare(self._portico.datamodule.given_loader(dataset, description))
            given.own_batch_size = get_user_batch_size(dataset) or 0
            given.transfer = self._portico.datamodule.transfer_of(dataset)
            return given
        loader = self._portico.build_loader(
            dataset, description=description, batch_size=batch_size, sampler_fn=sampler_fn, is_training=is_training
        )
        return self.accelerator.prepare(loader)

    def _get_train_sampler(self, train_dataset: "Examples | None" = None) -> Sampler[Any] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if overfits(self._portico.lightning_trainer) and has_length(dataset):
            # The same batches in every epoch.
            return SequentialSampler(dataset)
        return build_train_sampler(
            dataset, self.args, self.processing_class, processes_per_batch=self.accelerator.processes_per_batch
        )

    def _get_eval_sampler(self, eval_dataset: "Examples") -> Sampler[int] | None:
        return build_eval_sampler(eval_dataset, self.args, self.processing_class)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            parameters = list(inspect.signature(hf_compat.unwrap_peft_model(self.model).forward).parameters)
            # A column `label` becomes `labels` in the default collator.
            self._signature_columns = parameters + list({"label", "label_ids", *self.label_names})

    def _remove_unused_columns(self, dataset: "Examples", description: str | None = None) -> "Examples":
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        return self._portico.datamodule.remove_unused_columns(
            dataset, description, taken=self._signature_columns or []
        )

    def _get_collator_with_removed_columns(
        self, data_collator: "DataCollator", description: str | None = None
    ) -> "DataCollator":
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        return self._portico.datamodule.removing_collator(
            data_collator, description, taken=self._signature_columns or []
        )

    # ---- Optimizer & Scheduler & Learning rate ----

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Create the optimizer and the scheduler for a run of ``num_training_steps`` optimizer steps."""
        self.create_optimizer()
        if self.optimizer is None:
            raise InputError(
                f"`{type(self).__name__}.create_optimizer` did not set `self.optimizer`; let it do so, and return it."
            )
        self.create_scheduler(num_training_steps=num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer named by ``args.optim``, unless there is one already."""
        if self.optimizer is None:
            model = self.model if model is None else model
            groups = optim.parameter_groups(model, self.get_decay_parameter_names(model), self.args.weight_decay)
            optimizer_cls, kwargs = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(
                self.args, model
            )
            self.optimizer = optim.build_optimizer(model, groups, optimizer_cls, kwargs)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> "Scheduler":
        """Create the scheduler named by ``args.lr_scheduler_type``, unless there is one already."""
        if self.lr_scheduler is None:
            optimizer = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = optim.make_scheduler(self.args, optimizer, num_training_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: TrainingArguments, model: nn.Module | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the class and the keyword arguments of the optimizer named by ``args.optim``."""
        return optim.resolve_optimizer(args, model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that weight decay applies to."""
        return optim.decay_parameter_names(model)

    def get_num_trainable_parameters(self) -> int:
        """Return the number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of every parameter group."""
        return [group["lr"] for group in self._portico.require_optimizer().param_groups]

    def get_optimizer_group(self, param: torch.Tensor | None = None) -> Any:
        """Return the parameter group of ``param``; without ``param``, the parameters of every group."""
        groups = self._portico.require_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        return next((group for group in groups if any(member is param for member in group["params"])), None)

    def _get_learning_rate(self) -> float:
        scheduler: Any = self.lr_scheduler
        if scheduler is None or isinstance(scheduler, optim.STEP_AFTER_EVALUATION):
            assert self.optimizer is not None
            rate = self.optimizer.param_groups[0]["lr"]
        else:
            rate = scheduler.get_last_lr()[0]
        return rate.item() if isinstance(rate, torch.Tensor) else rate

    # ---- Training ----

    @run_in_workers
    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: "Trial" = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and return ``(global_step, training_loss, metrics)``.

        ``training_loss`` is the mean of the losses of all steps of this call. The model is left on its device, with
        the weights of the last step, or of the best checkpoint under ``load_best_model_at_end``.

        Args:
            resume_from_checkpoint: Folder of a checkpoint (of either library), or ``True`` for the last in
                ``args.output_dir``.
            trial: Trial of a hyperparameter search.
            ignore_keys_for_eval: Model outputs that evaluations during training leave out.

        Raises:
            InputError: If the checkpoint does not exist, or nothing says how many steps to take.
        """
        self._portico.trial = trial
        for observer in observers.active:
            resume_from_checkpoint = observer.on_train(self, resume_from_checkpoint)
        self._portico.check_training()
        if self.args.should_save:
            writer.clear_leftovers(self.args.output_dir)
            if self.args.save_strategy != "no":
                writer.refuse_unwritable(self.args.output_dir)
        checkpoint = resume.find_checkpoint(resume_from_checkpoint, self.args.output_dir)
        if checkpoint is not None and is_fast_dev_run(self._portico.lightning_trainer):
            raise InputError(
                "`fast_dev_run` runs only the first steps, so it cannot resume; remove `resume_from_checkpoint`."
            )
        self._memory_tracker.start()
        self.is_in_train = True
        try:
            self._portico.renew_model(trial)
            prepared = model_setup.prepared_for_training(self.model, self.args, self.neftune_noise_alpha)
            with prepared, hub.quiet_uploads(self.args):
                self._hp_search_setup(trial)
                if checkpoint is not None:
                    self._load_from_checkpoint(checkpoint)
                    self._train_batch_size = resume.read_batch_size(checkpoint, self.args) or self._train_batch_size
                loop = partial(
                    self._inner_training_loop,
                    args=self.args,
                    resume_from_checkpoint=checkpoint,
                    trial=trial,
                    ignore_keys_for_eval=ignore_keys_for_eval,
                )
                if self.args.auto_find_batch_size:
                    return model_setup.retry_with_smaller_batches(loop, self._train_batch_size)
                return loop(self._train_batch_size)
        finally:
            self.is_in_train = False

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: TrainingArguments | None = None,
        resume_from_checkpoint: str | None = None,
        trial: "Trial" = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Plan a run, set up its state and let Lightning run it; ``batch_size`` is per process."""
        args = self.args if args is None else args
        self._train_batch_size = self._train_batch_size if batch_size is None else batch_size
        self._portico.datamodule.setup("fit")
        loader = self.get_train_dataloader()
        for observer in observers.active:
            observer.on_train_dataloader(self, loader)
        # A tuple, as in transformers, whose subclasses override the method.
        counts = self.set_initial_training_values(args, loader)
        plan = RunPlan(*counts, gradient_accumulation_steps=args.gradient_accumulation_steps)
        return self._portico.run_training(
            self._portico.set_up_run(plan, loader, resume_from_checkpoint, trial, ignore_keys_for_eval)
        )

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: "Trial",
    ) -> tuple[int, int]:
        """Set up the state of a run; return its first epoch and the number of batches to skip in it."""
        self.state = fresh_state(self._portico.trainer)
        self.state.is_hyper_param_search = trial is not None
        self.state.train_batch_size = self._train_batch_size
        self.state.compute_steps(self.args, max_steps)
        resumed = resume.read_state(resume_from_checkpoint, self.args) if resume_from_checkpoint is not None else None
        point = ResumePoint()
        if resumed is not None:
            self._portico.adopt_state(resumed)
            point = ResumePoint.locate(
                resumed.global_step,
                num_update_steps_per_epoch=num_update_steps_per_epoch,
                gradient_accumulation_steps=self.args.gradient_accumulation_steps,
                skips_data=not self.args.ignore_data_skip,
            )
        self.state.init_training_references(self, max_steps, num_train_epochs, trial)
        return point.epoch, point.num_batches_to_skip

    def _finalize_training(self, trial: "Trial", num_train_samples: float, start_time: float) -> TrainOutput:
        """Log the results of the run, load the best model and fire ``on_train_end``.

        The memory tracker of transformers identifies its stages by the names of the methods that call it.
        """
        logger.info("Training completed.")
        self._portico.finish_checkpoint()
        self._total_loss_scalar += self._portico.corrections.sum_unlogged_loss(self._tr_loss)
        num_steps = self.state.global_step - self._initial_global_step
        # As in transformers, to avoid dividing by zero when the checkpoint was at the end of the run.
        train_loss = self._total_loss_scalar / max(num_steps, 0.001)
        # The plan counts the whole schedule, of which this run may have run only a part.
        num_samples = num_train_samples * num_steps / max(self.state.max_steps, 1)
        is_known = not math.isnan(num_samples)
        metrics = hf_compat.speed_metrics(
            "train", start_time, num_samples=num_samples if is_known else None, num_steps=num_steps
        )
        self.store_flos()
        metrics["total_flos"] = self.state.total_flos
        metrics["train_loss"] = train_loss
        self._memory_tracker.stop_and_update_metrics(metrics)
        self.log(metrics)
        self._portico.corrections.warn_of_unsaved_best()
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        run_folder = self._get_output_dir(trial)
        if (
            self.args.should_save
            and self.args.save_total_limit == 1
            and not self._portico.module.is_under_plain_trainer
        ):
            writer.delete_all_but_best(run_folder, self.state.best_model_checkpoint)
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self._finish_current_push()
        return TrainOutput(self.state.global_step, train_loss, metrics)

    def training_step(self, model: nn.Module, inputs: "Batch", num_items_in_batch: "NumItems" = None) -> torch.Tensor:
        """Run the forward pass of a batch and have Lightning run the backward pass.

        An override may call ``self.accelerator.backward(loss)`` itself, once or several times.

        Args:
            model: The model to train, in the wrapper of the strategy (``DistributedDataParallel`` with several
                processes).
            inputs: Model inputs of the batch, tensors ``[batch, ...]`` on any device.
            num_items_in_batch: Number of labels in the accumulation window, a ``float32`` scalar, if the loss is a
                mean over them; else ``None``.

        Returns:
            The detached loss, a scalar, already divided for accumulation; the logged loss is a mean of these.

        Source: ``Trainer.training_step`` in transformers 5.23.
        """
        set_training(model)
        # Schedule-free optimizers keep two sets of weights and must be told which one to use.
        if hasattr(self.optimizer, "train") and callable(self.optimizer.train):
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        for observer in observers.active:
            observer.on_compute_loss(self, model, inputs)
        share = None if self._portico.module.run is None else self._portico.module.run.share
        num_batches = self.current_gradient_accumulation_steps
        is_summed = num_batches == 1 or self._portico.sums_losses(num_items_in_batch)
        num_summed = num_batches if is_summed else 1
        counting = self._portico.corrections.counting(num_items_in_batch, share, num_summed=num_summed)
        with self.compute_loss_context_manager(), counting as count:
            loss = self.compute_loss(model, inputs, num_items_in_batch=count)
        if not isinstance(loss, torch.Tensor) or (loss.numel() != 1 and not self._portico.runs_backward_in_step):
            shape = f" of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
            raise InputTypeError(
                f"`compute_loss` returned {str(loss)[:80]!r} ({type(loss).__name__}{shape}); let it return "
                "only the loss, a tensor with one element, and `(loss, outputs)` only if it was called "
                "with `return_outputs=True`."
            )
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0 and torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        if share is not None:
            loss = share.scale(loss)
        elif not is_summed:
            # The real size of the window: the last one of an epoch may have fewer batches.
            loss = loss / num_batches
        # Here or right after this method: `BackwardPass` in `portico.loop.module` says which.
        self.accelerator.backward(loss)
        return loss.detach()

    def compute_loss(
        self, model: nn.Module, inputs: "Batch", return_outputs: bool = False, num_items_in_batch: "NumItems" = None
    ) -> Any:
        """Return the loss of a batch, from the model, the label smoother or ``compute_loss_func``.

        Args:
            model: The model, as :meth:`training_step` gets it.
            inputs: Model inputs, tensors ``[batch, ...]`` on the model's device; labels, ``int64`` for classes and
                tokens (-100: ignored), are taken out if the trainer computes the loss.
            return_outputs: Also return what the model returned.
            num_items_in_batch: As for :meth:`training_step`; passed on to models that take it.

        Returns:
            The loss, a scalar tensor (``float32`` under mixed precision) that carries gradients; with
            ``return_outputs`` the pair ``(loss, outputs)``.

        Raises:
            ValueError: If the model returns no loss.

        Source: ``Trainer.compute_loss`` in transformers 5.23.
        """
        takes_labels = self.label_smoother is not None or self.compute_loss_func is not None
        labels = inputs.pop("labels") if takes_labels and "labels" in inputs else None
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        loss, outputs = self._portico.forward_with_loss(model, inputs, labels, num_items_in_batch)
        # Processes average their gradients, so a sum over all of them divided by all items has to be multiplied back
        # (transformers 5.23 does so for every model that accepts loss arguments).
        scales = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if self.args.average_tokens_across_devices and scales and num_items_in_batch is not None:
            loss *= self._portico.corrections.process_factor()
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Return the context in which a loss is computed, from :meth:`autocast_smart_context_manager`."""
        stack = contextlib.ExitStack()
        casting = self.autocast_smart_context_manager()
        if type(casting) is not contextlib.nullcontext:  # which costs as much as a real one
            stack.enter_context(casting)
        return stack

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> contextlib.AbstractContextManager[Any]:
        """Return an empty context: :mod:`portico.distributed.precision` casts inside the model's forward instead."""
        return contextlib.nullcontext()

    def _maybe_log_save_evaluate(
        self,
        tr_loss: torch.Tensor,
        grad_norm: "torch.Tensor | float | nn.Module | None" = _OMITTED,
        model: "nn.Module | Trial" = None,
        trial: "Trial" = None,
        epoch: float | list[str] | None = None,
        ignore_keys_for_eval: list[str] | None = None,
        start_time: float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Log, evaluate and save, each if its control flag is set."""
        if isinstance(grad_norm, nn.Module):
            # Overrides for transformers up to 4.37 do not take the norm, so each argument comes one place earlier.
            ignore_keys_for_eval = cast("list[str] | None", epoch)
            model, trial = grad_norm, model
            grad_norm = _OMITTED
        if grad_norm is _OMITTED:
            grad_norm = self._portico.module.run.grad_norm if self._portico.module.run is not None else None
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            loss_sum = self.accelerator.gather(tr_loss).mean().item()
            # In place: the caller holds the same tensor and keeps adding to it.
            tr_loss -= tr_loss
            logs = {"loss": loss_sum / (self.state.global_step - self._globalstep_last_logged)}
            if grad_norm is not None:
                logs["grad_norm"] = grad_norm.item() if isinstance(grad_norm, torch.Tensor) else grad_norm
            logs["learning_rate"] = self._get_learning_rate() if learning_rate is None else learning_rate
            self._total_loss_scalar += loss_sum
            self._globalstep_last_logged = self.state.global_step
            self.store_flos()
            self.log(logs, start_time)
        if self.control.should_evaluate:
            metrics = self._evaluate(trial, ignore_keys_for_eval)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save and not is_fast_dev_run(self._portico.lightning_trainer):
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
            if self.args.should_save and self._portico.last_checkpoint is not None:
                refresh_manifest(self._portico.last_checkpoint)

    # ---- Training Utilities ----

    def get_batch_samples(
        self, epoch_iterator: Iterator["Batch"], num_batches: int, device: torch.device | None = None
    ) -> tuple[list["Batch"], "NumItems"]:
        """Fetch the batches of an accumulation window, and count the labels over which their losses are averaged.

        Labels of -100 do not count; models that shift their labels lose the first of each sequence.

        Args:
            epoch_iterator: Batches of the epoch.
            num_batches: Batches in the window; fewer are left at the end of the data.
            device: Device of the count; by default the device of this process.

        Returns:
            The batches, and the number of label positions in them (``None`` if the loss does not use it).
        """
        window = list(islice(epoch_iterator, num_batches))
        return window, self._get_num_items_in_batch(window, self.args.device if device is None else device)

    def _get_num_items_in_batch(self, batch_samples: list["Batch"], device: torch.device) -> "NumItems":
        wanted = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        # An override that does not take the count returns the mean of its batch, to be divided by the window.
        wanted = wanted and "num_items_in_batch" not in getattr(self.compute_loss, LEFT_OUT, ())
        if not wanted or not batch_samples or "labels" not in batch_samples[0]:
            return None
        count = count_labels(batch_samples, shifts_labels=self._loss_shifts_labels)
        if not isinstance(count, torch.Tensor):
            return count
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count.to(device)).sum()
        # Dividing by one makes the count a float, as in transformers, which divides by the processes that share it.
        return count.to(device) / 1

    def _prepare_input(self, data: "Nested") -> Any:
        strategy = self._portico.lightning_trainer.strategy
        moved = move_to_device(data, strategy.root_device)
        dtype = getattr(strategy, "input_dtype", None)
        if dtype is None:
            return moved
        return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, moved)

    def _prepare_inputs(self, inputs: "Batch") -> "Batch":
        inputs = self._prepare_input(inputs)
        if len(inputs) == 0:
            self._set_signature_columns_if_needed()
            raise ValueError(
                "The batch received was empty, your model won't be able to train on it. Double-check that your "
                f"training dataset contains keys expected by the model: {','.join(self._signature_columns or [])}. "
                "Or set `remove_unused_columns=False` and give a `data_collator`."
            )
        return inputs

    def _prepare_context_parallel_inputs(
        self, model: nn.Module, inputs: "Batch"
    ) -> tuple[type[contextlib.nullcontext[None]], "Batch"]:
        """Return an empty context and ``inputs``, for overrides copied from transformers' ``training_step``."""
        return contextlib.nullcontext, inputs

    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: "Loader"
    ) -> tuple[int, int, int, float, int, int, int]:
        """Count the steps of a training run.

        Returns:
            ``num_train_epochs``, ``num_update_steps_per_epoch``, ``num_examples``, ``num_train_samples``,
            ``total_train_batch_size``, ``steps_in_epoch`` (loader batches) and ``max_steps``.
        """
        num_batches, num_examples = len(dataloader) if has_length(dataloader) else None, None
        if num_batches:
            num_examples = self.num_examples(dataloader)
        limited = limit_batches(
            num_batches, self._portico.lightning_trainer.limit_train_batches, "limit_train_batches"
        )
        if limited != num_batches:
            num_taken = limited * self._train_batch_size * self.accelerator.data_parallel_size
            num_batches, num_examples = limited, min(num_taken, num_examples or num_taken)
        # With `fast_dev_run` the limit is the whole run.
        is_trial = is_fast_dev_run(self._portico.lightning_trainer)
        plan = RunPlan.make(
            max_steps=-1 if is_trial else args.max_steps,
            num_train_epochs=1 if is_trial else args.num_train_epochs,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
            total_train_batch_size=self.get_total_train_batch_size(args),
            num_batches=num_batches,
            num_examples=num_examples,
        )
        return plan.as_training_values()

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Return the number of examples per optimizer step, over all processes that see different data."""
        replicas = args.world_size // self.get_tp_size() // self.get_cp_size() // self.get_sp_size()
        return int(self._train_batch_size * args.gradient_accumulation_steps * replicas)

    def get_sp_size(self) -> int:
        """Return the number of processes that share each sequence and exchange heads of attention."""
        sharing = sequence_sharing(self._portico.lightning_trainer.strategy)
        return 1 if sharing.gathers_keys else sharing.size

    def get_cp_size(self) -> int:
        """Return the number of processes that share each sequence and gather keys and values."""
        sharing = sequence_sharing(self._portico.lightning_trainer.strategy)
        return sharing.size if sharing.gathers_keys else 1

    def get_tp_size(self) -> int:
        """Return the number of processes that each layer is split over."""
        # The strategy knows before the model is split.
        return int(getattr(self._portico.lightning_trainer.strategy, "tensor_parallel_size", 1))

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: "Loader | None" = None) -> nn.Module:
        """Return ``model``: the Lightning strategy wraps it."""
        return model

    def _track_num_input_tokens(self, inputs: "Batch") -> None:
        mode = self.args.include_num_input_tokens_seen
        if mode == "no":
            return
        main_input: Any = getattr(self.model, "main_input_name", "input_ids")
        if main_input not in inputs:
            logger.warning(
                "Tried to track the number of tokens seen, however the current model is not configured properly to "
                "know what item is the input. To fix this, add a `main_input_name` attribute to the model class you "
                f"are using. With `include_num_input_tokens_seen={mode!r}` the batch holds no `{main_input}`."
            )
            return
        tokens = count_tokens(inputs, main_input, self.processing_class, padding=mode != "non_padding")
        self.state.num_input_tokens_seen += int(self.accelerator.gather(tokens.to(self.args.device)).sum().item())

    def _has_mixed_mesh_grads(self, model: nn.Module) -> bool:
        """Return ``False``, for overrides copied from transformers' ``_clip_grad_norm``: strategies measure norms."""
        return False

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        # In the order of the model's parameters, not of the optimizer's groups: a norm is a float sum, whose last bits
        # depend on the order of its terms.
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: torch.Tensor | float | None = None) -> torch.Tensor | float:
        if grad_norm is not None:
            return grad_norm
        # An infinite limit measures without clipping.
        return self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))

    # ---- Evaluation & Prediction ----

    @run_in_workers
    def evaluate(
        self,
        eval_dataset: "str | EvalExamples | None" = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate and return the metrics: loss, results of ``compute_metrics``, run time and speed.

        Args:
            eval_dataset: Data to use instead of the trainer's, or the name of one of the trainer's sets. The sets of
                a dict are evaluated one by one, with the key in the metrics' names (``eval_KEY_loss``).
            ignore_keys: Model outputs to leave out of the predictions.
            metric_key_prefix: Prefix of every metric's name.

        Returns:
            Numbers by name, the same in every process: ``eval_loss`` in the unit of the model's loss, ``eval_runtime``
            in seconds, ``eval_samples_per_second``, ``eval_steps_per_second``, and what ``compute_metrics`` returned.
        """
        with self._portico.datamodule.lending(eval_dataset, "evaluation") as eval_dataset:
            override = eval_dataset is not None
            datasets = eval_dataset if override else self.eval_dataset
            if isinstance(datasets, dict):
                metrics: dict[str, float] = {}
                for name, dataset in datasets.items():
                    metrics |= self.evaluate(
                        # Given the name, `get_eval_dataloader` can keep a loader with persistent workers.
                        eval_dataset=dataset if override else name,
                        ignore_keys=ignore_keys,
                        metric_key_prefix=f"{metric_key_prefix}_{name}",
                    )
                return metrics
            self._memory_tracker.start()
            if not self.is_in_train:
                refuse_unevaluable(self.args)
            loader = self.get_eval_dataloader(datasets)
            start_time = time.time()
            output = self._portico.run_evaluation_loop(
                loader,
                description="Evaluation",
                # Without metrics the predictions are not used.
                prediction_loss_only=True if self.compute_metrics is None else None,
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
            measured = self._portico.add_speed(output, metric_key_prefix, start_time)
            self.log(measured)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, measured)
            self._memory_tracker.stop_and_update_metrics(measured)
            return measured

    def evaluation_loop(
        self,
        dataloader: "Loader",
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run ``dataloader`` through Lightning's evaluation loop, for both ``evaluate`` and ``predict``.

        Args:
            dataloader: Batches of this process, dicts of tensors ``[batch, ...]``.
            description: ``"Evaluation"`` or ``"Prediction"``.
            prediction_loss_only: Keep only the loss; by default ``args.prediction_loss_only``.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.

        Returns:
            ``predictions`` and ``label_ids``: NumPy arrays ``[examples, ...]`` of the dataset's length, in its order
            and of the model's dtype (``bfloat16`` becomes ``float32``), nested as the model's outputs are; shorter
            batches are padded with -100 along dimension 1. ``None`` where nothing was kept. ``metrics``: numbers by
            name; ``num_samples``: the number of examples, not counting the ones repeated to complete the last batch
            of several processes.

        Source: ``Trainer.evaluation_loop`` in transformers 5.23.
        """
        session = self._portico.evaluation_session(
            dataloader,
            description=description,
            prediction_loss_only=prediction_loss_only,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        start_time = time.time()
        self._portico.module.set_model(self.model)
        dtype = full_evaluation_dtype(self.args)
        if dtype is not None and not self.is_in_train:
            # The model stays in half precision afterwards, as in transformers.
            self.model.to(dtype=dtype, device=self.args.device)
        if self.model_preparation_time is None and self._portico.module.run is None and not self.state.global_step:
            self.model_preparation_time = round(time.time() - start_time, 4)
        try:
            with autocast_forward(self.model, self._portico.lightning_trainer.strategy):
                output = run_evaluation(session)
        except Exception as error:
            argument = "eval_dataset" if description == "Evaluation" else "test_dataset"
            explain_call(error, self)
            explain_failure(error, dataloader, argument, getattr(dataloader, "dataset", None), self.model)
            raise
        if self.model_preparation_time is not None and output.metrics is not None:
            output.metrics[f"{metric_key_prefix}_model_preparation_time"] = self.model_preparation_time
        # A replacement set by the user applies to one evaluation.
        self.gather_function = self.accelerator.gather_for_metrics
        return output

    def end(self) -> None:
        """Destroy the process group. Call once, at the end of a script that runs in several processes."""
        self.accelerator.end_training()

    @run_in_workers
    def predict(
        self, test_dataset: "Examples", ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predict on ``test_dataset``, and return ``(predictions, label_ids, metrics)``.

        Args:
            test_dataset: Examples, with or without labels.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.

        Returns:
            Predictions and labels as from :meth:`evaluation_loop`; ``label_ids`` is ``None``, and ``metrics`` has only
            run time and speed, for data without labels.
        """
        with self._portico.datamodule.lending(test_dataset, "test") as test_dataset:
            self._memory_tracker.start()
            refuse_unevaluable(self.args)
            loader = self.get_test_dataloader(test_dataset)
            start_time = time.time()
            output = self._portico.run_evaluation_loop(
                loader, description="Prediction", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
            )
            measured = self._portico.add_speed(output, metric_key_prefix, start_time)
            self.control = self.callback_handler.on_predict(self.args, self.state, self.control, measured)
            self._memory_tracker.stop_and_update_metrics(measured)
            return PredictionOutput(predictions=output.predictions, label_ids=output.label_ids, metrics=measured)

    def prediction_step(
        self, model: nn.Module, inputs: "Batch", prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Evaluate one batch.

        Args:
            model: The model to evaluate.
            inputs: Model inputs, as for :meth:`training_step`.
            prediction_loss_only: Return only the loss.
            ignore_keys: Model outputs to leave out; by default ``keys_to_ignore_at_inference`` of the configuration.

        Returns:
            Loss (a scalar, or ``None`` without labels), logits and labels, each detached and on the model's device;
            logits (``float32`` under mixed precision) and labels (their dtype in the batch) are tensors
            ``[batch, ...]``, or tuples of them if the model has several.

        Source: ``Trainer.prediction_step`` in transformers 5.23.
        """
        has_labels = bool(self.label_names) and all(inputs.get(name) is not None for name in self.label_names)
        return_loss = inputs.get("return_loss")
        return_loss = self.can_return_loss if return_loss is None else return_loss
        computes_loss = has_labels or (not self.label_names and return_loss)
        inputs = self._prepare_inputs(inputs)
        config: Any = getattr(self.model, "config", None)
        if ignore_keys is None and config is not None:
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", [hf_compat.CACHE_NAME]))
        ignored = ignore_keys or []
        # Read before the loss is computed, which may pop them.
        labels = labels_of(inputs, self.label_names) if computes_loss else None
        loss: torch.Tensor | None = None
        # Lightning's loops have turned gradients off; doing so again costs as much as a small layer.
        without_gradients = torch.no_grad() if torch.is_grad_enabled() else contextlib.nullcontext()
        with without_gradients, self.compute_loss_context_manager():
            if computes_loss:
                num_items = self._portico.corrections.count_for_loss(
                    self._get_num_items_in_batch([inputs], self.args.device)
                )
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items)
                loss = loss.detach()
                loss = loss.mean() if loss.dim() else loss
                ignored = [*ignored, "loss"]
            else:
                outputs = model(**inputs)
        if prediction_loss_only:
            return loss, None, None
        return loss, logits_of(outputs, ignored, skip_first=loss is not None), labels

    def _evaluate(
        self, trial: "Trial", ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        try:
            metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        except RuntimeError as error:
            if self.args.auto_find_batch_size and model_setup.is_out_of_memory(error):
                # A smaller training batch would not help.
                raise RuntimeError(
                    "Evaluation hit an out-of-memory error. `auto_find_batch_size` only adjusts the training batch "
                    "size, reduce `per_device_eval_batch_size` instead. It is "
                    f"{self.args.per_device_eval_batch_size}; set a smaller one."
                ) from error
            raise
        self._report_to_hp_search(trial, self.state.global_step, metrics)
        if isinstance(self.lr_scheduler, optim.STEP_AFTER_EVALUATION) and not skip_scheduler:
            self.lr_scheduler.step(self._portico.metric_for_best_model(metrics))
        return metrics

    # ---- Checkpoint Saving ----

    def _get_output_dir(self, trial: "Trial") -> str:
        folder: str = self.args.output_dir
        if self.hp_search_backend is None or trial is None:
            return folder
        backend = hp_search.search_backend(self.hp_search_backend)
        return str(Path(folder) / (self.hp_name(trial) if self.hp_name else f"run-{backend.run_id(trial)}"))

    def _save_checkpoint(self, model: nn.Module, trial: "Trial", metrics: dict[str, float] | None = None) -> None:
        """Write a checkpoint; ``metrics``, which older overrides pass, were already compared when measured."""
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        self._portico.finish_checkpoint()
        run_folder = self._get_output_dir(trial)
        final = Path(run_folder, f"checkpoint-{self.state.global_step}")
        with writer.staged(final, self._portico.checkpoint_parts()) as staging:
            self._portico.write_checkpoint(staging, Path(run_folder))
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(final))
        if self.args.should_save and not self._portico.background.is_pending:
            self._rotate_checkpoints(use_mtime=True, output_dir=run_folder)
        self._portico.last_checkpoint = final
        if self._portico.module.run is not None:
            self._portico.module.run.last_checkpoint = final

    def _determine_best_metric(self, metrics: dict[str, float], trial: "Trial") -> bool:
        """Record a new best value of ``metric_for_best_model``; return whether there was one."""
        if self.args.metric_for_best_model is None:
            return False
        value = self._portico.metric_for_best_model(metrics)
        is_better = np.greater if self.args.greater_is_better else np.less
        if self.state.best_metric is None:
            self.state.best_metric = float("-inf") if self.args.greater_is_better else float("inf")
        if not is_better(value, self.state.best_metric):
            return False
        self.state.best_metric = value
        if self.args.save_strategy != "no":
            self.state.best_global_step = self.state.global_step
        return True

    def _save_rng_state(self, output_dir: str) -> None:
        resume.save_rng_state(output_dir, self.args)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        writer.save_optimizer_and_scheduler(self._portico.checkpoint_parts(), Path(output_dir))

    def _save_scaler(self, output_dir: str) -> None:
        scaler = self.accelerator.scaler
        if scaler is not None and self.args.should_save:
            save_tensors(scaler.state_dict(), Path(output_dir) / writer.SCALER_FILE)

    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: str | None = None) -> None:
        """Delete the oldest checkpoints by step; ``use_mtime`` has no effect, and is what overrides receive."""
        writer.rotate_checkpoints(
            output_dir or self.args.output_dir,
            limit=self.args.save_total_limit,
            best=self.state.best_model_checkpoint,
            last_step=self.state.global_step,
        )

    # ---- Checkpoint Resuming ----

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        logger.info(f"Loading model from {resume_from_checkpoint}.")
        resume.warn_of_other_version(resume_from_checkpoint)
        if isinstance(self._portico.lightning_trainer.strategy, EngineStrategy):
            return  # the engine loads weights and optimizer together, once it exists
        # First, so that no process reads more than its part. The run's new strategy finds the model sharded.
        self._portico.module.shard_model(self._portico.lightning_trainer.strategy, materializes=False)
        self._portico.load_weights(self.model if model is None else model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        assert best is not None
        if self.deepspeed is not None:
            load_engine(self.deepspeed, Path(best), self.model)
            return
        if not weights.holds_weights(best):
            logger.warning(
                f"Could not locate the best model at {Path(best) / WEIGHTS_NAME}, if you are running a "
                "distributed training on multiple nodes, you should activate `--save_on_each_node`."
            )
            return
        logger.info(f"Loading best model from {best} (score: {self.state.best_metric}).")
        self._portico.load_weights(self.model, best)
        if weights.has_adapters(self.model):
            self.model.eval()  # as `load_adapter` of PEFT leaves it under transformers

    def _load_rng_state(self, checkpoint: str | None) -> None:
        resume.load_rng_state(checkpoint, self.args)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            resume.load_optimizer_and_scheduler(
                self._portico.checkpoint_parts(), Path(checkpoint), self._portico.convert_optimizer_state
            )

    def _load_scaler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            resume.load_scaler(self.accelerator.scaler, Path(checkpoint))

    def _load_callback_state(self) -> None:
        if self.args.restore_callback_states_from_checkpoint:
            self.control = writer.restore_callback_states(self.callback_handler, self.control, self.state)
        else:
            writer.warn_of_reset_callbacks(self.callback_handler, self.control, self.state)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        weights.warn_about_key_mismatch(self.model, load_result)

    # ---- Saving & Serialization ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write model, tokenizer and arguments to ``output_dir`` (by default ``args.output_dir``) from one process."""
        refuse_sharded_weights(self._portico.lightning_trainer.strategy)
        folder = self.args.output_dir if output_dir is None else output_dir
        with writer.naming_full_disk(Path(folder)):
            if self.deepspeed is None:
                with averaged_weights(self._portico.lightning_trainer):
                    self._save(folder)
            else:
                self._save(folder, state_dict=gather_weights(self.deepspeed, self.model))
                # As transformers does; a whole checkpoint gets the states anyway.
                if lacks_weights(self.deepspeed, self.model) and (not _internal_call or self.args.save_only_model):
                    save_engine(self.deepspeed, Path(folder), self.model)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        is_writer = self.args.should_save
        if not is_writer and not is_sharded(self.model):
            return
        folder = Path(self.args.output_dir if output_dir is None else output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        logger.info(f"Saving model checkpoint to {writer.destination(output_dir or self.args.output_dir)}")
        unwrapped = self.accelerator.unwrap_model(self.model)
        options: dict[str, Any] = {"is_writer": is_writer, "background": self._portico.background}
        weights.save_weights(self.model, unwrapped, str(folder), state_dict=state_dict, **options)
        if not is_writer:
            return
        tokenizer = getattr(self.data_collator, "tokenizer", None)
        if self.processing_class is None and tokenizer is not None:
            logger.info("The tokenizer of the data collator is saved, since there is no `processing_class`.")
        processor: Any = tokenizer if self.processing_class is None else self.processing_class
        if processor is not None:
            with staged_folder(folder, needs_unicode=True) as staging:
                processor.save_pretrained(staging)
        writer.save_arguments(build_transformers_arguments(self.args), str(folder))

    # ---- Logging & Metrics ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Send ``logs`` to the history, the callbacks, the Lightning loggers and Lightning's monitors.

        The epoch is added and, if the ``start_time`` of training is given, the token throughput.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                num_tokens = self.state.num_input_tokens_seen - self._initial_num_input_tokens_seen
                logs.update(hf_compat.speed_metrics("train", start_time, num_tokens=num_tokens))
        numbers = self._portico.record_in_history(logs)
        publish_metrics(self._portico.lightning_trainer, numbers)
        for lightning_logger in self._portico.lightning_trainer.loggers:
            lightning_logger.log_metrics(numbers, step=self.state.global_step)
            # As Lightning does after each row: a logger that buffers would lose an evaluation after the run.
            lightning_logger.save()

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print ``metrics`` of a ``split`` (``"train"``, ``"eval"``, ``"test"``) as a table, from one process."""
        hf_compat.log_metrics(self, split, metrics)

    def metrics_format(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Return ``metrics`` with times, memory and operations in human-readable units."""
        return hf_compat.metrics_format(metrics)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write ``metrics`` to ``{split}_results.json`` and, if ``combined``, to ``all_results.json``."""
        if not self.is_world_process_zero():
            return
        metrics = plain_values(metrics)
        folder = Path(self.args.output_dir)
        written, everything = folder / f"{split}_results.json", folder / "all_results.json"
        with writer.naming_full_disk(folder):
            write_text(written, json.dumps(metrics, indent=4, sort_keys=True))
        if combined:
            try:
                known = json.loads(read_text(everything)) if everything.is_file() else {}
            except ValueError as error:
                raise InputError(
                    f"{everything} is not JSON ({error}), so the metrics are in {written.name} only; delete or repair "
                    "it, or set `combined=False`."
                ) from error
            with writer.naming_full_disk(folder):
                write_text(everything, json.dumps({**known, **metrics}, indent=4, sort_keys=True))

    def save_state(self) -> None:
        """Write the trainer state to ``trainer_state.json`` in the output folder, from one process."""
        if self.is_world_process_zero():
            self._portico.write_state(Path(self.args.output_dir))

    def store_flos(self) -> None:
        """Add the operations counted by all processes since the last call to the state."""
        flos = self.current_flos
        if self.args.world_size > 1:
            flos = self.accelerator.gather(torch.tensor(flos, device=self.args.device)).sum().item()
        self.state.total_flos += flos
        self.current_flos = 0

    def floating_point_ops(self, inputs: "Batch") -> int:
        """Return the operations of a forward and a backward pass over ``inputs``, 0 if unknown."""
        # Per token and parameter, 2 forward and 4 backward (arXiv:2001.08361, section 2.1), as in transformers.
        model: Any = self.model
        main_input = getattr(model, "main_input_name", "input_ids")
        if main_input in inputs and hasattr(model, "num_parameters"):
            return int(6 * inputs[main_input].numel() * model.num_parameters(exclude_embeddings=True))
        return 0

    # ---- Hub Integration ----

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository named by ``args.hub_model_id``, from one process."""
        if self.is_world_process_zero():
            self.hub_model_id = hub.create_repository(self.args, token, private)
            self.push_in_progress = None

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

        Arguments are as in transformers; tags of an existing card are kept.
        """
        if not self.is_world_process_zero():
            return
        summary = hf_compat.TrainingSummary.from_trainer(
            self,
            language=language,
            license=license,
            tags=hub.add_earlier_tags(self.args.output_dir, tags),
            model_name=model_name,
            finetuned_from=finetuned_from,
            tasks=tasks,
            dataset_tags=dataset_tags,
            dataset=dataset,
            dataset_args=dataset_args,
        )
        hub.write_model_card(summary, self.args.output_dir, self.accelerator.unwrap_model(self.model))

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model, write its card (``kwargs`` as for :meth:`create_model_card`) and upload the output folder.

        The first process returns the hub's ``CommitInfo``, or a future of it unless ``blocking``; others ``None``.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        assert self.hub_model_id is not None
        self.create_model_card(**hub.card_of_model(kwargs, self.args, self.model))
        self._finish_current_push()
        return hub.upload_run(
            self.args, self.hub_model_id, commit_message, token=token, revision=revision, run_as_future=not blocking
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        args, running = self.args, self.push_in_progress
        is_busy = running is not None and not running.is_done()
        if args.hub_strategy == "end" or not self.is_world_process_zero() or (is_busy and not args.hub_always_push):
            return
        assert self.hub_model_id is not None
        self.callback_handler.on_push_begin(args, self.state, self.control)
        jobs: Any = hub.upload_checkpoint(
            args, self.hub_model_id, checkpoint_folder, self.state, self.processing_class
        )
        if is_busy:
            running.jobs.extend(jobs)
        else:
            self.push_in_progress = hf_compat.PushInProgress(jobs)

    def _finish_current_push(self) -> None:
        running = self.push_in_progress
        if running is not None and not running.is_done():
            logger.info("Waiting until the last upload to the hub is done.")
            running.wait_until_done()

    # ---- Hyperparameter Search ----

    # mypy assumes that `kwargs` may contain `self`.
    @run_in_workers  # type: ignore[arg-type]
    def hyperparameter_search(
        self,
        hp_space: Callable[["Trial"], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[["Trial"], str] | None = None,
        **kwargs: Any,
    ) -> hf_compat.BestRun | list[hf_compat.BestRun] | None:
        """Train once per trial, each with other training arguments, and return the best trial.

        A trial writes into ``run-<id>`` below ``args.output_dir``. Afterwards ``args`` holds the values of the last
        trial, and ``model`` is ``None``.

        Args:
            hp_space: Returns the training arguments of a trial (optuna), or the space they are drawn from (ray,
                wandb; called with ``None``); by default the space of transformers.
            compute_objective: Computes the objective, or several, from the metrics of an evaluation; by default the
                sum of all metrics, or the loss if there are no others. NaN is replaced by the worst finite value.
            n_trials: Number of trials.
            direction: ``"minimize"`` or ``"maximize"``; a list of them for several objectives.
            backend: ``"optuna"``, ``"ray"`` or ``"wandb"``; by default the first of them that is installed.
            hp_name: Returns the name of a trial, which is also the name of its folder.
            **kwargs: Options of the backend: ``optuna.create_study`` and ``Study.optimize``, ``ray.tune.run``, or
                ``sweep_id``, ``project``, ``entity``, ``name`` and ``metric`` of wandb.

        Returns:
            The best trial; a list of the best ones for several objectives. Processes other than the first return
            ``None``.

        Raises:
            RuntimeError: If the backend is not installed, or there is no ``model_init``.
            ValueError: If the backend or a direction is unknown.
        """
        functions = {"hp_space": hp_space, "compute_objective": compute_objective, "hp_name": hp_name}
        chosen, directions = hp_search.check_search(
            backend, direction, self.model_init, self.args.world_size, n_trials, functions
        )
        for observer in observers.active:
            n_trials = observer.on_search(self, n_trials)  # type: ignore[assignment]  # None for Optuna's `timeout`
        self.hp_search_backend = HPSearchBackend(chosen.name)
        self.hp_space = chosen.default_hp_space if hp_space is None else hp_space
        self.hp_name = hp_name
        compute_objective = compute_objective or hf_compat.default_compute_objective
        self.compute_objective = hp_search.FiniteObjective(compute_objective, directions)
        try:
            return chosen.run(self, n_trials, direction, **kwargs)  # type: ignore[arg-type]  # transformers: one only
        finally:
            self.hp_search_backend = None

    def call_model_init(self, trial: "Trial" = None) -> nn.Module:
        """Create a new model; ``trial`` is passed to ``model_init`` if it takes an argument."""
        assert self.model_init is not None
        num_arguments = hf_compat.number_of_arguments(self.model_init)
        if num_arguments > 1:
            raise InputRuntimeError(
                f"model_init should have 0 or 1 argument. It takes {num_arguments}; let it take none, or the trial."
            )
        model = self.model_init(trial) if num_arguments else self.model_init()
        if model is None:
            raise InputRuntimeError("model_init should not return None. Let it return a model.")
        return model

    def _hp_search_setup(self, trial: "Trial") -> None:
        """Set the training arguments to the values that ``trial`` chooses."""
        self._trial = trial
        if self.hp_search_backend is None or trial is None:
            return
        backend = hp_search.search_backend(self.hp_search_backend)
        hp_search.apply_trial(self.args, backend.hyperparameters(trial, self.hp_space))
        self._train_batch_size = get_user_batch_size(self.train_dataset) or self.args.train_batch_size
        self.create_accelerator_and_postprocess()

    def _report_to_hp_search(self, trial: "Trial", step: int, metrics: dict[str, float]) -> None:
        if self.hp_search_backend is None or trial is None:
            return
        metrics = metrics.copy()
        self.objective = self.compute_objective(metrics)
        evaluation = hp_search.TrialEvaluation(
            step=step,
            metrics=metrics,
            objective=self.objective,
            accelerator=self.accelerator,
            save_checkpoint=self._tune_save_checkpoint if self.control.should_save else None,
            end_training=lambda: self.callback_handler.on_train_end(self.args, self.state, self.control),
        )
        hp_search.search_backend(self.hp_search_backend).report(trial, evaluation)

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        checkpoint = Path(checkpoint_dir) / f"{hf_compat.PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self.save_model(str(checkpoint), _internal_call=True)
        if self.args.should_save:
            writer.export_callback_states(self.callback_handler, self.control, self.state)
            self._portico.write_state(checkpoint)
            writer.save_optimizer_and_scheduler(self._portico.checkpoint_parts(), checkpoint)

    # ---- Callbacks ----

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Add a callback, given as an instance or as a class to instantiate."""
        check_callback(callback)
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> TrainerCallback | None:
        """Remove a callback, or the first of a class, and return it; ``None`` if there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Remove a callback, or the first of a class."""
        self.callback_handler.remove_callback(callback)

    # ---- Utilities ----

    def is_local_process_zero(self) -> bool:
        """Return whether this is the first process of its machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Return whether this is the first process of all."""
        return self.args.process_index == 0

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if getattr(model, "hf_device_map", None) is not None:
            logger.warning(
                "The model is already on multiple devices. Skipping the move to device specified in `args`."
            )
            return
        model.to(device)

    # ---- Lightning ----

    lightning_trainer: "_OfCore[Any]" = _OfCore()
    module: "_OfCore[TrainerModule]" = _OfCore()
    datamodule: "_OfCore[TrainerDataModule]" = _OfCore()
    corrections: "_OfCore[Corrections]" = _OfCore()

    def __copy__(self) -> Self:
        """Return a trainer with the same model, arguments and data, whose runs are its own."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._portico = self._portico.copy_for(copied)
        copied.create_accelerator_and_postprocess()
        return copied
