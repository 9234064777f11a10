"""Every check of a trainer's input, in the order in which the constructor runs them.

The class is checked first, then each part, the training arguments, and the parts together, before any work is done.
"""

import dataclasses
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
import transformers
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import LayerSync, Precision
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from portico.arguments import (
    NO_COMPILER,
    UNUSUAL_NUMBERS,
    Stage,
    TrainingArguments,
    adopt_arguments,
    argument_rules,
    correction_names,
    metric_key,
    refuse_none,
    refuse_wrong_kinds,
    stage_that_reads,
    warn_of_other_kinds,
)
from portico.checkpoint.weights import has_adapters
from portico.compat.transformers import (
    has_length,
    is_liger_kernel_available,
    logger,
    validate_quantization_for_training,
)
from portico.distributed.deepspeed import EngineStrategy
from portico.distributed.model_parallel import ShardedStrategy, check_model, is_empty, is_sharded
from portico.distributed.placement import check_placement
from portico.distributed.precision import full_evaluation_dtype
from portico.distributed.sequence import check_sequences
from portico.distributed.settings import apply_accelerator_settings
from portico.distributed.strategies import refuse_own_backward, refuse_sharded_weights
from portico.errors import InputError, InputKeyError, InputRuntimeError, InputTypeError, MissingPackageError
from portico.observers import RunOptions
from portico.rules import Rule
from portico.trust.names import LIGHTNING_LOGGERS, imported

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy

    from portico.compat.annotations import Callbacks, ComputeMetrics, Optimizers
    from portico.loop.hooks import TrainerHooks

# ---- Each part by itself ----


def check_part_types(
    model: "nn.Module | None",
    model_init: object,
    callbacks: "Callbacks | None",
    optimizers: "Optimizers",
    lightning_callbacks: Sequence[Callback] | None,
    loggers: Sequence[Logger] | None,
    plugins: Sequence[object] | None,
) -> None:
    """Refuse parts of the wrong type, which would fail much later, and anything but one source of a model."""
    if model is None and model_init is None:
        raise InputRuntimeError(
            "`Trainer` requires either a `model` or `model_init` argument, and got neither; give one of them."
        )
    if model is not None and model_init is not None:
        raise InputError(
            "`Trainer` requires either a `model` or `model_init` argument, but not both. Give one of them."
        )
    _check_model(model)
    for callback in _check_list("callbacks", callbacks):
        check_callback(callback)
    for callback in _check_list("lightning_callbacks", lightning_callbacks):
        # Lightning only calls the methods of a callback and of a logger, of any class.
        if not hasattr(callback, "on_train_batch_end"):
            raise InputTypeError(
                f"`lightning_callbacks` holds a {type(callback).__name__}; give instances of Lightning's `Callback` "
                "there, and those of `TrainerCallback` in `callbacks`."
            )
        _check_lightning_callback(callback)
    for given in _check_list("loggers", [loggers] if isinstance(loggers, str) else loggers):
        if isinstance(given, type) or not hasattr(given, "log_metrics"):
            raise InputTypeError(
                f"`loggers` holds {_show(given)}; give Lightning loggers, for example "
                "`loggers=[CSVLogger(args.output_dir)]`, or set a tracker, such as `report_to='wandb'`."
            )
    for plugin in _check_list("plugins", plugins):
        if not isinstance(plugin, Precision | CheckpointIO | ClusterEnvironment | LayerSync):
            raise InputTypeError(
                f"`plugins` holds {_show(plugin)}; give Lightning plugins: a `Precision`, `CheckpointIO`, "
                "`ClusterEnvironment` or `LayerSync`."
            )
    if model_init is not None and not callable(model_init):
        raise InputTypeError(f"`model_init` is {_show(model_init)}; give a function that returns a model.")
    if not (isinstance(optimizers, tuple) and len(optimizers) == 2):
        raise InputTypeError(
            f"`optimizers` is a {type(optimizers).__name__}; give a tuple of an optimizer and a scheduler, instances "
            "of which each may be None."
        )


def refuse_old_order(compute_metrics: "ComputeMetrics | None") -> None:
    """Refuse positional arguments in the order of transformers 4, with ``callbacks`` as ``compute_metrics``.

    A ``compute_metrics`` in the position of ``compute_loss_func`` is explained when its call fails.
    """
    if isinstance(compute_metrics, list) and any(hasattr(item, "on_init_end") for item in compute_metrics):
        raise InputTypeError(
            "`compute_metrics` is a list of callbacks: transformers 5 takes `compute_loss_func` before "
            "`compute_metrics`; give these and the rest by keyword."
        )


def check_callback(callback: object) -> None:
    """Raise ``InputTypeError`` unless ``callback`` is a callback of transformers, or has its methods."""
    # A class with the events need not inherit from `TrainerCallback`: transformers only calls them.
    if not hasattr(callback, "on_init_end"):
        advice = "; give this one in `lightning_callbacks`" if isinstance(callback, Callback) else ""
        raise InputTypeError(
            f"`callbacks` holds a {type(callback).__name__}, which has no `on_init_end`; give instances or "
            f"subclasses of `TrainerCallback`{advice}."
        )


# Lightning callbacks that would override training arguments, and what to do instead.
REFUSED_CALLBACKS: Mapping[type[Callback], str] = {
    GradientAccumulationScheduler: "the trainer counts accumulation windows; set `gradient_accumulation_steps`",
    StochasticWeightAveraging: "it replaces the learning rate schedule; use Lightning's `WeightAveraging`",
    BatchSizeFinder: "use `portico.callbacks.BatchSizeFinder`, whose `apply=True` sets the batch size",
    LearningRateFinder: "use `portico.callbacks.LearningRateFinder`, whose `apply=True` stands for `update_attr`",
    BackboneFinetuning: (
        "it adds parameters that the schedule does not know; freeze them with `requires_grad_(False)`, or give them a "
        "group of their own in `create_optimizer`"
    ),
    OnExceptionCheckpoint: (
        "it resumes Lightning's checkpoints by itself; set `save_strategy`, and resume with "
        "`train(resume_from_checkpoint=True)`"
    ),
}


def _check_lightning_callback(callback: Callback) -> None:
    for kind, instead in REFUSED_CALLBACKS.items():
        if isinstance(callback, kind):
            raise InputError(f"`lightning_callbacks` holds a {type(callback).__name__}; leave it out: {instead}.")


def check_run_options(options: RunOptions) -> None:
    """Refuse options of ``portico.install`` that no trainer could use."""
    check_placement(options.given)
    correction_names(options.corrections)
    for part in _check_list("callbacks", options.callbacks):
        kind = _kind_of(part)
        if not (issubclass(kind, Callback) or hasattr(kind, "on_init_end")):
            raise InputTypeError(
                f"`callbacks` holds {_show(part)}; give callbacks of transformers or Lightning, or their names as "
                "`package.Class`."
            )
    for part in _check_list("loggers", options.loggers):
        if part not in LIGHTNING_LOGGERS and not issubclass(_kind_of(part), Logger):
            raise InputTypeError(
                f"`loggers` holds {_show(part)}; give Lightning loggers, the name of a logger's class as "
                f"`package.Class`, or {' or '.join(map(repr, LIGHTNING_LOGGERS))}."
            )


def _kind_of(part: object) -> type:
    found = imported(part) if isinstance(part, str) else part
    return found if isinstance(found, type) else type(found)


def find_unused_hooks(model: object) -> list[str]:
    """Return the hooks of Lightning that ``model`` overrides, none of which is called on the model of a trainer."""
    if not isinstance(model, pl.LightningModule):
        return []
    names = [name for name in vars(pl.LightningModule) if not name.startswith("_")]
    names += [name for hooks in (ModelHooks, DataHooks, CheckpointHooks) for name in vars(hooks) if name[0] != "_"]
    hooks = {name for name in names if inspect.isfunction(getattr(pl.LightningModule, name))} - {"forward"}
    return sorted(name for name in hooks if is_overridden(name, model, pl.LightningModule))


def _check_model(model: object) -> None:
    if unused := find_unused_hooks(model):
        logger.warning(
            f"`model` is a LightningModule, of which a trainer calls only `forward`, for the loss and the logits. "
            f"{', '.join(f'`{name}`' for name in unused)} of `{type(model).__name__}` will not be called; the guide "
            "'From plain Lightning' says what takes the place of each."
        )
    if model is None or isinstance(model, nn.Module):
        return
    if isinstance(model, type):
        raise InputTypeError(
            f"`model` is the class {model.__name__}; give an instance of it, or a function that makes one as "
            "`model_init`."
        )
    advice = "give a `torch.nn.Module`"
    if isinstance(model, str):
        advice = f"load it, for example with `AutoModelForSequenceClassification.from_pretrained({model!r})`"
    raise InputTypeError(f"`model` is {_show(model)}, and not a model; {advice}.")


def _check_list(name: str, parts: object) -> Sequence[Any]:
    if parts is not None and (isinstance(parts, str) or not isinstance(parts, Sequence)):
        raise InputTypeError(f"`{name}` is {_show(parts)}; give a list of {name.split('_')[-1]}.")
    return parts or []


def _show(value: object) -> str:
    """Return what ``value`` is, in a few words."""
    if isinstance(value, str | int | float):
        return f"{str(value)[:80]!r}" if isinstance(value, str) else f"the number {value}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def list_loaders(data: object) -> list[object]:
    """Return the loaders in a list, a tuple or a ``CombinedLoader``, which ``lightning.Trainer`` takes."""
    if isinstance(data, CombinedLoader):
        return list(data.flattened)
    is_of_loaders = isinstance(data, list | tuple) and len(data) > 0 and isinstance(data[0], DataLoader)
    return list(data) if is_of_loaders else []  # type: ignore[call-overload]


def check_examples(argument: str, data: object) -> None:
    """Refuse what no loader can read: the name of a file, all splits of a set, a table.

    ``argument`` is the name under which the trainer got ``data``.
    """
    if data is None or isinstance(data, DataLoader):
        return
    if loaders := list_loaders(data):
        named = f"a dict of loaders by name, as `{argument}={{'first': loader, 'second': other_loader}}`"
        advice = "one `DataLoader`" if argument == "train_dataset" else named
        raise InputTypeError(f"`{argument}` is a {type(data).__name__} of {len(loaders)} loaders; give {advice}.")
    if isinstance(data, str | PathLike):
        path = str(data)
        reader = _READERS.get(Path(path).suffix)
        load = f"'{reader}', data_files={path!r}, split='train'" if reader else f"{path!r}, split='train'"
        raise InputTypeError(
            f"`{argument}={path!r}` is a string, not data; load it, for example with `datasets.load_dataset({load})`."
        )
    if isinstance(data, Mapping) and not _has_rows(data):
        names = [str(name) for name in data] or ["nothing"]
        if not any(isinstance(value, list | tuple | torch.Tensor) for value in data.values()):
            raise InputTypeError(
                f"`{argument}` is a dict of {', '.join(names)}; give one set, for example "
                f"`{argument}=dataset[{names[0]!r}]`."
            )
        raise InputTypeError(
            f"`{argument}` is a dict of the columns {', '.join(names)}; make a set of them with "
            "`datasets.Dataset.from_dict`."
        )
    if isinstance(data, Iterator | Set) and not isinstance(data, IterableDataset) and not hasattr(data, "__getitem__"):
        problem = "has no order" if isinstance(data, Set) else "can be read once and has no length"
        raise InputTypeError(
            f"`{argument}` is a {type(data).__name__}, which {problem}; give a list of its examples, or a set made by "
            "`datasets.Dataset.from_generator`."
        )
    # Of pandas, a table and not a column: its numbers name columns, and a row has no names that a model takes.
    if hasattr(data, "iloc") and hasattr(data, "columns") and not isinstance(data, Dataset):
        raise InputTypeError(
            f"`{argument}` is a {type(data).__name__} of pandas; convert it with `datasets.Dataset.from_pandas`."
        )
    if isinstance(data, type) or not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise InputTypeError(
            f"`{argument}` is {_show(data)}; give a data set with `__getitem__` and `__len__`, or an "
            "`IterableDataset`."
        )


def check_loss_function(function: object) -> None:
    """Refuse a ``compute_loss_func`` that cannot be called; its parameters are judged when it is."""
    if function is not None and not callable(function):
        raise InputTypeError(
            f"`compute_loss_func` is {_show(function)}; give a function of `(outputs, labels, num_items_in_batch)`."
        )


def check_collator(collator: object) -> None:
    """Refuse a collator that cannot make a batch."""
    # The instances of another class may be batches.
    if isinstance(collator, type) and "__call__" in dir(collator):
        raise InputTypeError(
            f"`data_collator` is the class {collator.__name__}; give an instance of it, which makes a batch of a list "
            "of examples."
        )
    if not callable(collator):
        raise InputTypeError(
            "The `data_collator` should be a simple callable (function, class with `__call__`). It is a "
            f"{type(collator).__name__}; give one that makes a batch of a list of examples."
        )


def _has_rows(data: Mapping[Any, object]) -> bool:
    """Return whether ``data`` can be read by number, as a class of the user's with its own lookup can."""
    if 0 in data or hasattr(data, "__missing__"):
        return True
    if type(data).__getitem__ is dict.__getitem__:
        return False
    try:
        data[0]
    except (LookupError, TypeError, ValueError, AttributeError):
        return False
    return True


_READERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}


def refuse_untrainable_quantized(model: "nn.Module") -> None:
    """Refuse a quantised model that cannot be trained: compiled, without adapters, or by a method without training."""
    if not getattr(model, "is_quantized", False):
        return
    try:
        validate_quantization_for_training(model)
    except ValueError as error:
        advice = "Attach adapters with `peft.get_peft_model`, or load the model without `quantization_config`"
        if has_adapters(model):
            advice = (
                "Load the model without `quantization_config`; `torchao.quantize_(model, IntxWeightOnlyConfig(...))` "
                "then stores its weights in any number of bits, before adapters are attached"
            )
        raise InputError(f"{error}. {advice}.") from error


def refuse_empty(model: "nn.Module", device: torch.device) -> None:
    """Refuse a model on the meta device if each process needs all weights: there are no values to move."""
    if is_empty(model) and device.type != "meta" and getattr(model, "hf_device_map", None) is None:
        raise InputError(
            f"The weights of {type(model).__name__} are on the meta device, without values, and each process needs "
            "all of them; set `fsdp=True` in a run of several processes, which read their parts from a folder, or "
            "make the model with `from_pretrained`."
        )


_SWITCH = Rule((bool, NoneType))
_NUM_BATCHES = Rule((int, float, NoneType), least=0)
PASSED_ON: Mapping[str, Rule | None] = {
    "fast_dev_run": Rule((bool, int), least=0),
    "limit_train_batches": _NUM_BATCHES,
    "limit_val_batches": _NUM_BATCHES,
    "limit_test_batches": _NUM_BATCHES,
    "limit_predict_batches": _NUM_BATCHES,
    "overfit_batches": _NUM_BATCHES,
    "max_time": None,
    "num_sanity_val_steps": Rule((int, NoneType), least=-1),
    "enable_model_summary": _SWITCH,
    "profiler": Rule((str, NoneType)),
    "detect_anomaly": _SWITCH,
    "deterministic": Rule((bool, NoneType), choices=("warn",)),
    "benchmark": _SWITCH,
    "sync_batchnorm": _SWITCH,
    "enable_autolog_hparams": _SWITCH,
}
"""Arguments of ``lightning.Trainer`` (2.6) that are passed on, each with a rule unless Lightning checks its values."""
_STOPS_EARLY = "a callback that ends a run early has its own patience"
SAID_ELSEWHERE = {
    **{
        name: f"`TrainingArguments({name}=...)`"
        for name in ("accelerator", "strategy", "devices", "num_nodes", "precision", "max_steps")
    },
    "logger": "`Trainer(loggers=[...])`",
    "callbacks": "`Trainer(lightning_callbacks=[...])`",
    "plugins": "`Trainer(plugins=[...])`",
    "max_epochs": "`TrainingArguments(num_train_epochs=...)`",
    "min_epochs": _STOPS_EARLY,
    "min_steps": _STOPS_EARLY,
    "val_check_interval": "`TrainingArguments(eval_strategy='steps', eval_steps=...)`",
    "check_val_every_n_epoch": "`TrainingArguments(eval_strategy='epoch')`",
    "log_every_n_steps": "`TrainingArguments(logging_steps=...)`",
    "enable_checkpointing": "`TrainingArguments(save_strategy=...)`, or a `ModelCheckpoint` in `lightning_callbacks`",
    "enable_progress_bar": "`TrainingArguments(disable_tqdm=...)`, or a progress bar in `lightning_callbacks`",
    "accumulate_grad_batches": "`TrainingArguments(gradient_accumulation_steps=...)`",
    "gradient_clip_val": "`TrainingArguments(max_grad_norm=...)`",
    "gradient_clip_algorithm": "`TrainingArguments(max_grad_norm=...)`, or override `_clip_grad_norm`",
    "inference_mode": "evaluations run under `torch.no_grad`, so that callbacks can keep their tensors",
    "use_distributed_sampler": "the loaders share the data over the processes; override `get_train_dataloader`",
    "barebones": "it would turn off the callbacks and loggers that a trainer consists of",
    "reload_dataloaders_every_n_epochs": "define `set_epoch` in the dataset, which is called in every epoch",
    "default_root_dir": "`TrainingArguments(output_dir=...)`",
    "model_registry": "`TrainingArguments(push_to_hub=True, hub_model_id=...)`",
}


def check_lightning_kwargs(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the user's arguments of ``lightning.Trainer``; refuse the ones that a training argument already sets."""
    if given is not None and not isinstance(given, Mapping):
        raise InputTypeError(f"`lightning_kwargs` is a {type(given).__name__}; give a dict of arguments by name.")
    given = given or {}
    for name in given:
        if name in SAID_ELSEWHERE:
            instead = SAID_ELSEWHERE[name]
            instead = f"set {instead}" if instead.startswith("`") else instead
            raise InputError(f"`lightning_kwargs` sets `{name}`, which the trainer decides; leave it out: {instead}.")
        if name not in PASSED_ON:
            raise InputError(
                f"`lightning_kwargs` sets `{name}`, which `lightning.Trainer` does not have; it may set "
                f"{', '.join(PASSED_ON)}."
            )
        rule = PASSED_ON[name]
        if rule is not None and not (rule.allows(given[name]) or isinstance(given[name], Profiler)):
            raise InputError(
                f"`lightning_kwargs` sets `{name}={given[name]!r}`, which cannot be used; set it to "
                f"{rule.describe_in_python()}."
            )
    options = dict(given or {})
    # `predict` runs in Lightning's test loop, so its limit is a limit on test batches.
    predicted = options.pop("limit_predict_batches", None)
    if predicted is not None and options.setdefault("limit_test_batches", predicted) != predicted:
        raise InputError(
            f"`limit_predict_batches={predicted}` and `limit_test_batches={options['limit_test_batches']}` both limit "
            "`predict`; set one of them."
        )
    return options


# ---- The training arguments ----


def prepare_arguments(args: TrainingArguments | None) -> TrainingArguments:
    """Return ``args``, of either library, checked and placed by Lightning; apply their log level."""
    if args is None:
        logger.info("Without `args` the run writes into `tmp_trainer`.")
        args = TrainingArguments(output_dir="tmp_trainer")
    args = adopt_arguments(args)
    refuse_unusable_arguments(args)
    apply_accelerator_settings(args, lambda: args.lightning_strategy)
    apply_log_level(args)
    warn_about_ignored_arguments(args)
    warn_of_other_kinds(args)
    warn_of_unusual_numbers(args)
    return args


def refuse_unusable_arguments(args: TrainingArguments) -> None:
    """Refuse training arguments that no trainer could use."""
    refuse_unsupported(args)
    refuse_wrong_kinds(args)
    check_numbers(args)
    check_async_save(args)
    check_compiler(args)


def refuse_untrainable(args: TrainingArguments) -> None:
    """Refuse training arguments that an evaluation does not read and no training could use."""
    refuse_none(args)
    refuse_wrong_kinds(args, "training")
    check_numbers(args, "training")
    check_kernels(args)


def refuse_unevaluable(args: TrainingArguments) -> None:
    """Refuse training arguments that no evaluation could use, and that a training without one does not read."""
    refuse_wrong_kinds(args, "evaluation")
    check_numbers(args, "evaluation")


def apply_log_level(args: "TrainingArguments") -> None:
    """Apply ``log_level`` to transformers and, unless it is ``"passive"``, to portico."""
    level = args.get_process_log_level()
    transformers.logging.set_verbosity(level)
    if args.log_level != "passive":
        logging.getLogger("portico").setLevel(level)


def refuse_unsupported(args: TrainingArguments) -> None:
    """Refuse values outside a field's choices, and warn of an order of the data that counts as random."""
    for field in dataclasses.fields(args):
        choices, value = field.metadata.get("choices"), getattr(args, field.name)
        if choices is None or value is None or value in choices:
            continue
        if field.name == "train_sampling_strategy":
            logger.warning(
                "`train_sampling_strategy=%r` is unknown and counts as 'random', as in transformers; set it to one of "
                "%s.",
                value,
                ", ".join(map(repr, choices)),
            )
        else:
            raise InputError(
                f"Unknown value `{field.name}={value!r}`; set it to one of {', '.join(map(repr, choices))}."
            )


def check_async_save(args: TrainingArguments) -> None:
    """Refuse checkpoints that would be uploaded before their folder exists."""
    if args.async_save and args.push_to_hub and args.save_strategy != "no" and args.hub_strategy != "end":
        raise InputError(
            "`async_save=True` completes a checkpoint while training continues, but `hub_strategy="
            f"{str(getattr(args.hub_strategy, 'value', args.hub_strategy))!r}` uploads it at once; set "
            "`hub_strategy='end'`, or leave `async_save` out."
        )


def check_numbers(args: TrainingArguments, stage: Stage = "construction") -> None:
    """Refuse numbers out of range that are first read in a ``stage``."""
    known = argument_rules()
    fields = [
        (field.name, getattr(args, field.name), known[field.name])
        for field in dataclasses.fields(args)
        if field.name in known
        and {int, float}.intersection(known[field.name].kinds)
        and stage_that_reads(args, field.name) == stage
    ]
    for name, value, rule in fields:
        # Scripts that count steps write `num_train_epochs=-1`.
        is_unused = name == "num_train_epochs" and args.max_steps > 0
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not is_unused and not dataclasses.replace(rule, kinds=(float,)).allows(value):
            raise InputError(f"`{name}={value!r}` cannot be used; set it to {rule.describe_in_python()}.")


def warn_of_unusual_numbers(args: TrainingArguments) -> None:
    """Warn about numbers that transformers takes although their effect is hardly wanted."""
    for name, (least, most, effect) in UNUSUAL_NUMBERS.items():
        value = getattr(args, name)
        if isinstance(value, int | float) and not least <= value <= most:
            logger.warning("`%s=%r` is taken as transformers takes it: %s.", name, value, effect)


# Fields without effect, and the reason.
WITHOUT_EFFECT = {
    "local_rank": "Lightning's strategy, or `torchrun`, says which process this is",
    "sortish_sampler": (
        "it has none in transformers either; `train_sampling_strategy='group_by_length'` makes batches of similar "
        "lengths"
    ),
}


def warn_about_ignored_arguments(args: TrainingArguments) -> None:
    """Warn about each training argument that was set and has no effect."""
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        # Arrays of several numbers compare each of them.
        is_default = isinstance(value, type(field.default)) and value == field.default
        if field.name in WITHOUT_EFFECT and not is_default:
            logger.warning("`%s=%r` has no effect: %s.", field.name, value, WITHOUT_EFFECT[field.name])
    if "tpu_metrics_debug" in args.debug:
        logger.warning("`debug='tpu_metrics_debug'` has no effect: it is for TPUs, and the run is on none.")


def check_kernels(args: TrainingArguments) -> None:
    """Refuse Liger kernels without their package; warn about those for a device that they do not have."""
    if args.use_liger_kernel and not is_liger_kernel_available():
        raise MissingPackageError(
            "`use_liger_kernel=True`, but liger-kernel is not installed; install it with `pip install liger-kernel`, "
            "or set `use_liger_kernel=False`."
        )
    if args.use_liger_kernel and args.device.type == "cpu":
        # A model of a type without kernels keeps its layers, and trains.
        logger.warning(
            "`use_liger_kernel=True`, but liger-kernel has no kernels for the CPU, where the run is placed; set "
            "`use_liger_kernel=False`, or `use_cpu=False` on a machine with a GPU."
        )


def check_compiler(args: TrainingArguments) -> None:
    """Refuse compilers and modes that torch does not have."""
    backend = str(args.torch_compile_backend or "").lower()
    if args.torch_compile and backend != NO_COMPILER:
        from torch._inductor import list_mode_options  # slow to import

        backends = torch.compiler.list_backends(exclude_tags=())
        if args.torch_compile_backend not in backends and backend not in backends:
            raise InputError(
                f"Unknown compiler `torch_compile_backend={args.torch_compile_backend!r}`; set it to one of "
                f"{', '.join(backends)}."
            )
        modes = [None, *list_mode_options()]
        if backend == "inductor" and args.torch_compile_mode not in modes:
            raise InputError(
                f"Unknown mode `torch_compile_mode={args.torch_compile_mode!r}`; set it to one of "
                f"{', '.join(map(repr, modes))}."
            )


# ---- The parts together ----


def _check_data_and_processor(trainer: "TrainerHooks", *, reads_eval_dataset: bool) -> None:
    if isinstance(trainer.train_dataset, CombinedLoader):  # whose length cannot even be asked for
        check_examples("train_dataset", trainer.train_dataset)
    for name, data in name_sets("eval_dataset", trainer.eval_dataset):
        if reads_eval_dataset:
            check_examples(name, data)
    if not _can_be_saved(trainer.processing_class):
        logger.warning(_unsavable(trainer.processing_class))


def _can_be_saved(processing_class: object) -> bool:
    return processing_class is None or hasattr(processing_class, "save_pretrained")


def _unsavable(processing_class: object) -> str:
    return (
        f"`processing_class` is {_show(processing_class)}, which cannot be saved with the model; give an object, for "
        "example a tokenizer made by `AutoTokenizer.from_pretrained`."
    )


def refuse_unsavable(processing_class: object, args: TrainingArguments) -> None:
    """Refuse a ``processing_class`` at which the first checkpoint of a training would fail."""
    # Under "best" there may be no checkpoint.
    if args.save_strategy in ("steps", "epoch") and not _can_be_saved(processing_class):
        raise InputTypeError(_unsavable(processing_class))


def check_optimizers(optimizer: object, lr_scheduler: object, optimizer_cls_and_kwargs: object) -> None:
    """Refuse an optimizer, a scheduler or a description of them with which no training could begin."""
    if not (optimizer is None or hasattr(optimizer, "param_groups")) or isinstance(lr_scheduler, type):
        kinds = [getattr(part, "__name__", type(part).__name__) for part in (optimizer, lr_scheduler)]
        raise InputTypeError(
            f"`optimizers` is ({', '.join(kinds)}); give a tuple of an optimizer and a scheduler, instances of which "
            "each may be None."
        )
    described = optimizer_cls_and_kwargs
    if described is not None and not (
        isinstance(described, tuple)
        and len(described) == 2
        and callable(described[0])
        and isinstance(described[1], Mapping)
    ):
        raise InputTypeError(
            f"`optimizer_cls_and_kwargs` is {_show(described)}; give a tuple of an optimizer's class and a dict of "
            "its arguments."
        )


def name_sets(argument: str, data: object) -> list[tuple[str, object]]:
    """Return the sets of ``eval_dataset``, which may be a dict of them, with the words that name each."""
    if not isinstance(data, dict):
        return [(argument, data)]
    if not data:
        logger.warning(
            "`%s` is an empty dict, so an evaluation measures nothing; put sets into it, by name.", argument
        )
    return [(f"{argument}[{name!r}]", examples) for name, examples in data.items()]


def check_best_metric(args: TrainingArguments, eval_dataset: object, *, adds_metrics: bool) -> None:
    """Refuse a ``metric_for_best_model`` that no evaluation of several sets has, before the training.

    The names of their metrics begin with ``eval_`` and the name of the set. A metric that code of the user may add
    (``adds_metrics``) is not refused.
    """
    name = args.metric_for_best_model
    is_compared = args.eval_strategy != "no" and (args.load_best_model_at_end or args.save_strategy == "best")
    if name is None or not is_compared or adds_metrics or not isinstance(eval_dataset, dict) or not eval_dataset:
        return
    key = metric_key(name)
    if not any(key.startswith(f"eval_{each}_") for each in eval_dataset):
        first = next(iter(eval_dataset))
        raise InputKeyError(
            f"`metric_for_best_model={name!r}` means `{key}`, which evaluations of several sets do not have: their "
            f"metrics begin with {', '.join(f'`eval_{each}_`' for each in eval_dataset)}; set it to the metric of one "
            f"set, for example `metric_for_best_model='{first}_loss'`."
        )


def check_consistency(trainer: "TrainerHooks", *, reads_eval_dataset: bool) -> None:
    """Refuse parts of the wrong kind, and parts that contradict each other or the training arguments."""
    _check_data_and_processor(trainer, reads_eval_dataset=reads_eval_dataset)
    args, strategy = trainer.args, trainer._portico.lightning_trainer.strategy
    if args.eval_strategy != "no" and trainer.eval_dataset is None:
        raise InputError(
            f"You have set `args.eval_strategy` to {args.eval_strategy} but you didn't pass an `eval_dataset` to "
            "`Trainer`. Either set `args.eval_strategy` to `no` or pass an `eval_dataset`."
        )
    if (args.save_strategy == "best" or args.load_best_model_at_end) and args.metric_for_best_model is None:
        raise InputError(
            "`args.metric_for_best_model` must be provided when using 'best' save_strategy or if "
            "`args.load_best_model_at_end` is set to `True`. To compare checkpoints by their loss, set it to 'loss'."
        )
    if trainer.optimizer_cls_and_kwargs is not None and trainer.optimizer is not None:
        raise InputRuntimeError(
            "Passing both `optimizers` and `optimizer_cls_and_kwargs` arguments is incompatible. Give one of them."
        )
    if trainer.model_init is not None and (trainer.optimizer is not None or trainer.lr_scheduler is not None):
        raise InputRuntimeError(
            "Passing a `model_init` is incompatible with providing the `optimizers` argument. You should subclass "
            "`Trainer` and override the `create_optimizer_and_scheduler` method. Each run has a model of its own."
        )
    own = set(map(id, trainer.model.parameters()))
    groups: Any = getattr(trainer.optimizer, "param_groups", None)
    if groups and not any(id(parameter) in own for group in groups for parameter in group["params"]):
        logger.warning(
            "The optimizer in `optimizers` holds no parameter of the model, which it cannot train; make it of "
            "`model.parameters()` of this model."
        )
    if trainer.train_dataset is not None and not has_length(trainer.train_dataset) and args.max_steps <= 0:
        raise InputError(
            "The train_dataset does not implement __len__, so the number of training steps cannot be inferred; "
            "max_steps has to be specified. The total number of steps must be known in advance to bound the training "
            "loop and to configure the learning rate scheduler. Set `max_steps` to an int >= 1."
        )
    check_model(strategy, trainer.model)
    if isinstance(strategy, EngineStrategy):
        strategy.check(has_optimizer=trainer.optimizer is not None or trainer.lr_scheduler is not None)
    check_sequences(strategy, trainer.model)


def check_strategy_of_training(args: TrainingArguments, strategy: "Strategy", *, runs_backward_in_step: bool) -> None:
    """Refuse to train in a way that ``strategy`` cannot; warn of evaluations that will be refused afterwards."""
    if runs_backward_in_step:
        refuse_own_backward(strategy)
    if args.save_strategy != "no":
        refuse_sharded_weights(strategy)
    if isinstance(strategy, ShardedStrategy) and full_evaluation_dtype(args):
        logger.warning(
            "`bf16_full_eval` and `fp16_full_eval` have no effect in training, and after it this trainer cannot "
            "evaluate: the model is sharded and keeps its type. Set `bf16=True` instead, or evaluate with another "
            "trainer."
        )


def refuse_cast_of_shards(args: TrainingArguments, model: "nn.Module") -> None:
    """Refuse to evaluate a model in half precision that is sharded already."""
    if full_evaluation_dtype(args) and is_sharded(model):
        raise InputError(
            "`bf16_full_eval` and `fp16_full_eval` cast a model, but one that is sharded for training keeps its type; "
            "set `bf16=True` instead, or evaluate with a trainer that has not trained."
        )
