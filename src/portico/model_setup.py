"""What a trainer is set up with: traits of the model, what arguments change about it, and built-in callbacks."""

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import nn
from transformers import ProgressCallback, TrainerCallback

from portico.errors import InputError, InputRuntimeError
from portico.hf_compat import (
    LOSS_MAPPING,
    DebugOption,
    DebugUnderflowOverflow,
    ForCausalLMLoss,
    JITCheckpointCallback,
    LabelSmoother,
    activate_neftune,
    apply_liger_kernel,
    can_return_loss,
    deactivate_neftune,
    find_labels,
    get_reporting_integration_callbacks,
    is_in_notebook,
    unwrap_peft_model,
)

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments
    from portico.trainer import Trainer


@dataclass(frozen=True)
class ModelTraits:
    """How a model takes labels and returns losses.

    Args:
        label_names: Names of the label inputs.
        can_return_loss: Whether it returns a loss without labels (contrastive models).
        accepts_loss_kwargs: Whether its forward takes ``num_items_in_batch``.
        loss_shifts_labels: Whether its loss leaves out the first label position.
    """

    label_names: list[str]
    can_return_loss: bool
    accepts_loss_kwargs: bool
    loss_shifts_labels: bool

    @classmethod
    def of(cls, model: nn.Module, unwrapped: nn.Module, label_names: list[str] | None) -> "ModelTraits":
        """Read the traits of ``model``; ``label_names`` given by the user win.

        PEFT's adapters are looked through to the base model; of the model inside a wrapper (``unwrapped``) only the
        signature of ``forward`` is read, as in ``transformers.Trainer``.
        """
        model, unwrapped = unwrap_peft_model(model), unwrap_peft_model(unwrapped)
        parameters = inspect.signature(unwrapped.forward).parameters.values()
        takes_kwargs = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        causal = LOSS_MAPPING.get(str(getattr(model, "loss_type", None))) is ForCausalLMLoss
        return cls(
            label_names=find_labels(type(model)) if label_names is None else label_names,
            can_return_loss=bool(can_return_loss(type(model))),
            accepts_loss_kwargs=bool(getattr(unwrapped, "accepts_loss_kwargs", takes_kwargs)),
            loss_shifts_labels=causal and not is_encoder_decoder,
        )


def label_smoother(args: "TrainingArguments", model: nn.Module) -> LabelSmoother | None:
    """Return the smoother for ``label_smoothing_factor``, ``None`` if it is 0 or does not apply to the model."""
    if args.label_smoothing_factor == 0:
        return None
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        warnings.warn(
            "`label_smoothing_factor` has no meaning for multi-label classification and is ignored.",
            UserWarning,
            stacklevel=3,
        )
        return None
    return LabelSmoother(epsilon=args.label_smoothing_factor)


@contextmanager
def prepared_for_training(model: nn.Module, args: "TrainingArguments") -> Iterator[None]:
    """Give ``model`` kernels, activation checkpointing, noisy embeddings and overflow detection, as the arguments say.

    The noise is removed afterwards, also when training fails.

    Raises:
        InputError: If the model does not support it.
    """
    # The older names mirror the newer ones, which transformers has only since 5.23.
    if args.use_liger_kernel:
        apply_liger_kernel(model, args.liger_kernel_config)
    if args.gradient_checkpointing:
        options: Any = args.gradient_checkpointing_kwargs
        enable_activation_checkpointing(model, options or {})
    if DebugOption.UNDERFLOW_OVERFLOW in args.debug:
        DebugUnderflowOverflow(model)
    if args.neftune_noise_alpha is None:
        yield
        return
    if not hasattr(model, "get_input_embeddings"):
        raise InputError(
            f"`neftune_noise_alpha={args.neftune_noise_alpha}` adds noise to embeddings, but {type(model).__name__} "
            "has no `get_input_embeddings`; define it to return the embedding layer, or leave the argument out."
        )
    handle = activate_neftune(model, args.neftune_noise_alpha)
    try:
        yield
    finally:
        deactivate_neftune(model, handle)


def compiled_for_training(model: nn.Module, wrapped: Any, args: "TrainingArguments") -> Any:
    """Return ``model``, compiled where ``torch_compile`` is set.

    Args:
        model: Model to train; the result shares its weights.
        wrapped: Model that an earlier run trained; returned again if it is ``model``, compiled.
        args: Training arguments.
    """
    if not args.torch_compile or hasattr(model, "_orig_mod"):
        return model
    if getattr(wrapped, "_orig_mod", None) is model:
        return wrapped
    mode = None if args.torch_compile_mode == "default" else args.torch_compile_mode
    backend: Any = args.torch_compile_backend
    return torch.compile(model, backend=backend, mode=mode)


def enable_activation_checkpointing(model: Any, options: Mapping[str, Any]) -> None:
    """Make ``model`` compute activations again in backward instead of keeping them.

    Args:
        model: A model with ``activation_checkpointing_enable``, or under its older name
            ``gradient_checkpointing_enable``, as all of ``transformers`` have.
        options: ``every_n_layers`` and ``offload`` choose layers and place; the rest goes to
            ``torch.utils.checkpoint``.

    Raises:
        InputError: If the model has neither method.
    """
    placement = {name: options[name] for name in ("every_n_layers", "offload") if name in options}
    rest = {name: value for name, value in options.items() if name not in placement} or None
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=rest, **placement)
    elif hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=rest, **placement)
    else:
        raise InputError(
            f"`activation_checkpointing=True`, but {type(model).__name__} has no `activation_checkpointing_enable`; "
            "define it, or set `activation_checkpointing=False`."
        )


def apply_log_level(args: "TrainingArguments") -> None:
    """Set the level that ``log_level`` names, for transformers and, unless it is ``"passive"``, for portico."""
    level = args.get_process_log_level()
    transformers.logging.set_verbosity(level)
    if args.log_level != "passive":
        logging.getLogger("portico").setLevel(level)


def reporting_callbacks(report_to: list[str], logging_dir: str | None = None) -> list[TrainerCallback]:
    """Return the callbacks that report to the trackers named in ``TrainingArguments.report_to``.

    Args:
        report_to: Names of trackers.
        logging_dir: Folder of those that write into one; by default their own choice.

    Raises:
        InputError: If a tracker is unknown, or its package is not installed.
    """
    try:
        trackers = [tracker() for tracker in get_reporting_integration_callbacks(report_to)]
    except (ImportError, RuntimeError, ValueError) as error:
        kind = InputRuntimeError if isinstance(error, RuntimeError) else InputError
        raise kind(
            f"`report_to={', '.join(report_to)}` cannot be used ({error}); install its package, name another tracker, "
            "or set it to 'none'."
        ) from error
    for tracker in trackers:
        if logging_dir is not None and hasattr(tracker, "logging_dir"):
            tracker.logging_dir = logging_dir
    return trackers


def termination_callbacks(trainer: "Trainer") -> list[TrainerCallback]:
    """Return the callback that saves a checkpoint on SIGTERM, if ``enable_jit_checkpoint`` is set."""
    if not trainer.args.enable_jit_checkpoint:
        return []
    callback = JITCheckpointCallback()
    callback.set_trainer(trainer)
    return [callback]


def progress_callback() -> type[TrainerCallback]:
    """Return the progress bar of transformers: a table in a notebook, else a line in the terminal."""
    if is_in_notebook():
        from portico.hf_compat import NotebookProgressCallback

        return NotebookProgressCallback
    return ProgressCallback
