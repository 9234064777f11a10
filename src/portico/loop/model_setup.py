"""Setting up a trainer: traits of the model and changes to it, built-in callbacks, and running out of memory."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    SequenceFeatureExtractor,
    TrainerCallback,
    default_data_collator,
)

from portico.arguments import NO_COMPILER
from portico.checkpoint.weights import has_adapters
from portico.compat import older
from portico.compat import transformers as hf_compat
from portico.compat.lightning import is_fast_dev_run
from portico.distributed.placement import release_memory
from portico.errors import InputError, InputRuntimeError, InputTypeError
from portico.trust.disk import remove_detour
from portico.trust.names import LIGHTNING_LOGGERS, made_part, model_class

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments
    from portico.loop.hooks import TrainerHooks

Result = TypeVar("Result")


def loss_shifts_labels(model: nn.Module) -> bool:
    """Return whether the loss of ``model`` leaves out the first label position."""
    is_causal = hf_compat.LOSS_MAPPING.get(str(getattr(model, "loss_type", None))) is hf_compat.ForCausalLMLoss
    return is_causal and not getattr(getattr(model, "config", None), "is_encoder_decoder", False)


def has_device_map(model: nn.Module, device: torch.device) -> bool:
    """Return whether ``from_pretrained(device_map=...)`` placed layers on devices other than ``device``."""
    layers: Any = getattr(model, "hf_device_map", None) or {}
    devices = {place for place in layers.values() if place not in ("cpu", "disk")}
    return len(devices) > 1 or any(torch.device(place) != device for place in devices)


def set_attention(model: Any, implementation: str | None) -> None:
    """Set how a transformers model computes attention; ``None`` leaves it unchanged."""
    if implementation is None:
        return
    try:
        model.set_attn_implementation(implementation)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"`model.attn_implementation={implementation}` cannot be used by {type(model).__name__} "
            f"({' '.join(str(error).split())}); set it to eager or sdpa, or to null for the model's own choice."
        ) from error


def describe_model(model: nn.Module) -> dict[str, Any] | None:
    """Return class and configuration of a transformers model, as plain values; ``None`` for another model."""
    config: Any = getattr(model, "config", None)
    if not isinstance(model, PreTrainedModel) or not hasattr(transformers, type(model).__name__):
        return None
    return {"class": type(model).__name__, "config": config.to_json_string(use_diff=False)}


def model_like(description: Mapping[str, Any] | None) -> nn.Module:
    """Return a model with new weights, from the description made by :func:`describe_model`."""
    if description is None:
        raise InputError(
            "The checkpoint does not say how to make its model, since it is not one of transformers; make it, and "
            "give it to `TrainerModule.load_from_checkpoint(path, model=model)`."
        )
    kind = model_class(description["class"])
    return kind(kind.config_class(**json.loads(description["config"])))


def default_collator(processing_class: Any) -> Any:
    """Return the default collator, which pads if ``processing_class`` can."""
    pads = isinstance(processing_class, PreTrainedTokenizerBase | SequenceFeatureExtractor)
    return DataCollatorWithPadding(processing_class) if pads else default_data_collator


def label_smoother(args: "TrainingArguments", model: nn.Module) -> hf_compat.LabelSmoother | None:
    """Return the smoother for ``label_smoothing_factor``, ``None`` if it is 0 or does not apply to the model."""
    if args.label_smoothing_factor == 0:
        return None
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        warnings.warn(
            "Label smoothing is not compatible with multi-label classification. Disabling label smoothing for this "
            "training run. To silence this, leave `label_smoothing_factor` out.",
            UserWarning,
            stacklevel=3,
        )
        return None
    return hf_compat.LabelSmoother(epsilon=args.label_smoothing_factor)


@contextmanager
def prepared_for_training(
    model: nn.Module, args: "TrainingArguments", neftune_noise_alpha: float | None
) -> Iterator[None]:
    """Apply Liger kernels, activation checkpointing, overflow detection and NEFTune noise, as the arguments say.

    The size of the noise is the trainer's: as in transformers, a change of the arguments has no effect on it. The
    noise is removed afterwards, also when training fails. What the model does not support is refused.
    """
    refuse_unusable_quantized_weights(model, args)
    if args.use_liger_kernel:
        hf_compat.apply_liger_kernel(model, args.liger_kernel_config)
    # transformers keeps this older name of `activation_checkpointing` in step.
    if args.gradient_checkpointing:
        options: Any = args.gradient_checkpointing_kwargs
        enable_activation_checkpointing(model, options or {})
    if "underflow_overflow" in args.debug:
        hf_compat.DebugUnderflowOverflow(model)
    if args.neftune_noise_alpha != neftune_noise_alpha:
        hf_compat.logger.warning(
            "`neftune_noise_alpha=%s` was set after the trainer was made, and has no effect; set "
            "`trainer.neftune_noise_alpha`.",
            args.neftune_noise_alpha,
        )
    if neftune_noise_alpha is None:
        yield
        return
    if not hasattr(model, "get_input_embeddings"):
        raise InputError(
            f"`neftune_noise_alpha={neftune_noise_alpha}` adds noise to embeddings, but {type(model).__name__} "
            "has no `get_input_embeddings`; define it to return the embedding layer, or leave the argument out."
        )
    handle = hf_compat.activate_neftune(model, neftune_noise_alpha)
    try:
        yield
    finally:
        hf_compat.deactivate_neftune(model, handle)


def refuse_unusable_quantized_weights(model: nn.Module, args: "TrainingArguments") -> None:
    """Refuse weights of torchao through which no gradient passes, and those that cannot be copied or saved here.

    Each layer is tried with one vector, since what a kernel can do depends on the device and on torchao's release.
    """
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and type(layer.weight).__module__.startswith("torchao.")
    }
    for name, layer in layers.items():
        given = torch.ones(1, layer.in_features, dtype=layer.weight.dtype, device=layer.weight.device)
        try:
            with torch.enable_grad():
                torch.autograd.grad(nn.functional.linear(given.requires_grad_(), layer.weight).sum(), given)
        except (NotImplementedError, RuntimeError) as error:
            raise InputError(
                f"No gradient passes through `{name}`, a {type(layer.weight).__name__} of torchao on "
                f"{layer.weight.device.type} ({error}), so adapters below it would learn nothing; quantise the "
                "weights only (`Int8WeightOnlyConfig`, `IntxWeightOnlyConfig`), or train with "
                "`QATConfig(..., step='prepare')`."
            ) from error
    if layers and args.world_size > 1:
        raise InputError(
            f"{type(model).__name__} has weights of torchao, which cannot be copied between {args.world_size} "
            "processes; train in one process."
        )
    is_savable = has_adapters(model) or getattr(model, "hf_quantizer", None) is not None
    if layers and not is_savable and args.save_strategy != "no":
        raise InputError(
            f"{type(model).__name__} has weights that `torchao.quantize_` quantised, and no adapters, so its "
            "checkpoints could not be written; attach adapters with `peft.get_peft_model`, or set "
            "`save_strategy='no'`."
        )


def compile_for_training(model: nn.Module, wrapped: Any, args: "TrainingArguments") -> Any:
    """Return ``model``, compiled if ``torch_compile`` is set; ``wrapped``, of an earlier run, is reused if it fits."""
    # `_orig_mod` marks the wrapper that `torch.compile` returns.
    backend: Any = args.torch_compile_backend
    if not args.torch_compile or str(backend).lower() == NO_COMPILER or hasattr(model, "_orig_mod"):
        return model
    if getattr(wrapped, "_orig_mod", None) is model:
        return wrapped
    mode = None if args.torch_compile_mode == "default" else args.torch_compile_mode
    # accelerate reads names of any case.
    is_known = backend in torch.compiler.list_backends(exclude_tags=())
    return torch.compile(model, backend=backend if is_known else backend.lower(), mode=mode)


def enable_activation_checkpointing(model: Any, options: Mapping[str, Any]) -> None:
    """Make ``model`` recompute activations in backward instead of keeping them.

    ``options`` are ``every_n_layers``, ``offload``, and arguments of ``torch.utils.checkpoint``.
    """
    placement = {name: options[name] for name in ("every_n_layers", "offload") if name in options}
    rest = {name: value for name, value in options.items() if name not in placement} or None
    is_theirs = isinstance(hf_compat.unwrap_peft_model(model), PreTrainedModel)
    if is_theirs and not hasattr(model, "activation_checkpointing_enable"):
        older.enable_gradient_checkpointing(model, rest, placement)
    elif hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=rest, **placement)
    elif hasattr(model, "gradient_checkpointing_enable"):
        warnings.warn(
            f"`{type(model).__name__}` only defines `gradient_checkpointing_enable`, which is deprecated and will no "
            "longer be called in v6. Define `activation_checkpointing_enable` instead.",
            FutureWarning,
            stacklevel=2,
        )
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=rest, **placement)
    else:
        raise InputError(
            f"`activation_checkpointing=True`, but {type(model).__name__} has no `activation_checkpointing_enable`; "
            "define it, or set `activation_checkpointing=False`."
        )


def default_callbacks(trainer: "TrainerHooks") -> list[Any]:
    """Return the callbacks that come before the user's: control flow, trackers, and a checkpoint on SIGTERM."""
    args = trainer.args
    # A run of a few batches is not tracked, as under Lightning.
    trackers = [] if is_fast_dev_run(trainer._portico.lightning_trainer) else _trackers(args.report_to)
    # The deprecated argument; transformers' arguments have none.
    folder = getattr(args, "logging_dir", None)
    for tracker in trackers:
        if folder is not None and hasattr(tracker, "logging_dir"):
            tracker.logging_dir = folder
    savers = [hf_compat.JITCheckpointCallback()] if args.enable_jit_checkpoint else []
    for saver in savers:
        saver.set_trainer(trainer)
    return [hf_compat.DefaultFlowCallback, *trackers, *savers]


def refuse_missing_trackers(names: Sequence[str]) -> None:
    """Refuse trackers of ``report_to`` that do not exist or are not installed; no other is made."""
    installed = hf_compat.get_available_reporting_integrations()
    _trackers([name for name in names if name not in installed])


def _trackers(names: Sequence[str]) -> list[Any]:
    if not names:
        return []
    try:
        return [tracker() for tracker in hf_compat.get_reporting_integration_callbacks(names)]
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        kinds = {RuntimeError: InputRuntimeError, TypeError: InputTypeError, Exception: InputError}
        kind = next(kind for plain, kind in kinds.items() if isinstance(error, plain))
        raise kind(
            f"`report_to={', '.join(map(str, names))}` cannot be used ({error}); install its package, name another "
            "tracker, or set it to 'none'."
        ) from error


def progress_callback() -> type[TrainerCallback]:
    """Return the progress bar of transformers: a table in a notebook, a line in a terminal."""
    return hf_compat.NotebookProgressCallback if hf_compat.is_in_notebook() else ProgressCallback


def make_logger(part: object, folder: str) -> Any:
    """Return a Lightning logger: an object, an instance of a class, or by its short name a logger in ``folder``.

    What leads elsewhere in ``folder``, where the logger writes, is removed.
    """
    if part in LIGHTNING_LOGGERS:
        made: Any = CSVLogger(folder, name="csv") if part == "csv" else TensorBoardLogger(folder, name="tensorboard")
    else:
        made = made_part(part)
    if isinstance(made, CSVLogger | TensorBoardLogger):
        for place in (made.root_dir, made.log_dir):
            path = Path(place).absolute()
            if path.is_relative_to(Path(folder).absolute()) and path != Path(folder).absolute():
                remove_detour(path)
    return made


# ---- Memory ----

# Messages of torch's allocators (CUDA, ROCm and XPU share the first) and of cuDNN, as in accelerate's
# `should_reduce_batch_size`.
_OUT_OF_MEMORY = (
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, RuntimeError)
        and len(error.args) == 1
        and any(words in str(error.args[0]) for words in _OUT_OF_MEMORY)
    )


def retry_with_smaller_batches(train: Callable[[int], Result], batch_size: int) -> Result:
    """Call ``train`` with ``batch_size`` examples, and again with a tenth less each time that memory runs out."""
    while batch_size > 0:
        release_memory()
        try:
            return train(batch_size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # As accelerate's `find_executable_batch_size`, which transformers' trainer uses.
        size_before, batch_size = batch_size, int(batch_size * 0.9)
        if batch_size:
            hf_compat.logger.warning(
                f"Memory ran out with batches of {size_before} examples; training starts again with batches of "
                f"{batch_size} (`auto_find_batch_size=True`), and so do its logs."
            )
    raise RuntimeError(
        "No executable batch size found, reached zero. Even one example does not fit the memory; set "
        "`activation_checkpointing=True`, shorten the examples, or take a smaller model."
    )
