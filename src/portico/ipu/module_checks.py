"""Modules that a program cannot run as they are."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from portico.errors import InputError

_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def check_module(module: pl.LightningModule) -> None:
    """Refuse a module whose steps are no programs.

    Raises:
        InputError: Says why, and what to do instead.
    """
    if hasattr(module, "facade") and not getattr(module, "runs_steps_on_host", False):
        raise InputError(
            f"`strategy='ipu'` came to a {type(module.hf_trainer).__name__}, which does not know programs; use "
            "`IPUTrainer`, `IPUSeq2SeqTrainer` or `IPUGradientDescentTrainer`, or mix "
            "`portico.ipu.trainer.IPUMethods` into your trainer."
        )
    if not module.automatic_optimization:
        raise InputError(
            "The module optimizes manually, but a program makes the weight updates itself; set "
            "`automatic_optimization=True`."
        )
    for name in _TRANSFER_HOOKS:
        if is_overridden(name, module):
            raise InputError(
                f"Overriding `{name}` is not supported with IPUs: a program takes its batch from the host; change the "
                "batch in the data set or in `collate_fn`."
            )


def check_optimizers(optimizers: list[torch.optim.Optimizer]) -> None:
    """Refuse optimizers that need more than one forward pass.

    Raises:
        InputError: If there is one.
    """
    if optimizers and isinstance(optimizers[0], torch.optim.LBFGS):
        raise InputError("LBFGS calls the model several times a step, which a program cannot; use another optimizer.")
