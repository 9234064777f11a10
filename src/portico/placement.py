"""Where a run happens: the Lightning strategy behind a set of training arguments."""

import os
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import Strategy

from portico.errors import InputError
from portico.quiet import quiet_lightning


def lightning_placement(args: Any) -> dict[str, Any]:
    """Return the ``lightning.Trainer`` arguments that place a run: accelerator, strategy, devices, precision, nodes.

    Args:
        args: ``transformers.TrainingArguments`` of any kind; the fields that portico adds may be missing.
    """
    accelerator = getattr(args, "accelerator", None)
    return {
        "accelerator": accelerator or ("cpu" if args.use_cpu else "auto"),
        "strategy": getattr(args, "strategy", None) or "auto",
        "devices": getattr(args, "devices", None) or int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "num_nodes": getattr(args, "num_nodes", None) or 1,
        "precision": getattr(args, "precision", None) or _precision(args),
    }


def resolve_strategy(args: Any) -> Strategy:
    """Return the strategy that a run with ``args`` uses, before any run exists.

    Raises:
        InputError: If this machine has no such place.
    """
    placement = lightning_placement(args)
    try:
        with quiet_lightning():
            return pl.Trainer(
                **placement,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            ).strategy
    except (MisconfigurationException, ImportError) as error:
        asked = ", ".join(f"{name}={value!r}" for name, value in placement.items())
        raise InputError(
            f"Lightning cannot place the run here ({' '.join(str(error).split())}); it was asked for {asked}. Set "
            "`accelerator` and `devices` to what this machine has, for example 'cpu' and 1."
        ) from error


def _precision(args: Any) -> str:
    if args.bf16:
        return "bf16-mixed"
    if args.fp16 and (args.use_cpu or not torch.accelerator.is_available()):
        raise InputError(
            "`fp16=True` asks for float16, which Lightning does not compute in on a CPU; set `bf16=True` with "
            "`use_cpu=True`, or leave both out for float32."
        )
    return "16-mixed" if args.fp16 else "32-true"
