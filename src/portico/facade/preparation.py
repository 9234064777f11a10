"""What training arguments change about a model for the length of a training."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn
from transformers.debug_utils import DebugOption, DebugUnderflowOverflow
from transformers.integrations.liger import apply_liger_kernel
from transformers.integrations.neftune import activate_neftune, deactivate_neftune

from portico.errors import InputError


@contextmanager
def prepared_for_training(model: nn.Module, args: Any) -> Iterator[None]:
    """Give ``model`` kernels, activation checkpointing, noisy embeddings and overflow detection, as the arguments ask.

    The noise is taken away afterwards, also when training fails.

    Raises:
        InputError: If the model cannot do what is asked for.
    """
    # The older names mirror the newer ones, which transformers has only since 5.23.
    if args.use_liger_kernel:
        apply_liger_kernel(model, args.liger_kernel_config)
    if args.gradient_checkpointing:
        enable_activation_checkpointing(model, args.gradient_checkpointing_kwargs or {})
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


def compiled_for_training(model: nn.Module, wrapped: Any, args: Any) -> Any:
    """Return ``model`` as ``torch_compile`` and its options ask for it.

    Args:
        model: Model to train; its weights are shared with what is returned.
        wrapped: What an earlier run trained; it is returned again where it is ``model`` compiled.
        args: Training arguments.
    """
    if not args.torch_compile or hasattr(model, "_orig_mod"):
        return model
    if getattr(wrapped, "_orig_mod", None) is model:
        return wrapped
    mode = None if args.torch_compile_mode == "default" else args.torch_compile_mode
    return torch.compile(model, backend=args.torch_compile_backend, mode=mode)


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


def apply_log_level(args: Any) -> None:
    """Set the level that ``log_level`` names, for transformers and, unless it is ``"passive"``, for portico."""
    level = args.get_process_log_level()
    transformers.logging.set_verbosity(level)
    if args.log_level != "passive":
        logging.getLogger("portico").setLevel(level)
