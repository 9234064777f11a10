"""The ``lightning.Trainer`` under the trainer: bare loops, whose every decision comes from Hugging Face's arguments."""

import sys
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, Checkpoint, GradientAccumulationScheduler, ProgressBar
from lightning.pytorch.loggers import Logger
from torch import nn

from portico.distributed.placement import run_placement
from portico.distributed.processes import end_children, inside_worker
from portico.errors import InputError
from portico.lightning_compat import (
    Unprofiled,
    end_at_batches_alone,
    leave_signals_alone,
    pass_batches_directly,
    quiet_lightning,
    run_without_launcher,
    take_losses_undivided,
)
from portico.plan import RunPlan


def build_lightning_trainer(
    args: Any,
    *,
    plan: RunPlan | None = None,
    model: nn.Module | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    plugins: Sequence[Any] = (),
) -> pl.Trainer:
    """Return a ``lightning.Trainer`` that runs loops and does nothing else on its own.

    Args:
        args: Training arguments.
        plan: Counts of the run; ``None`` for a trainer that only evaluates.
        model: What is trained, if known.
        callbacks: Lightning callbacks, the event bridge first: it must see an epoch before a ``ModelCheckpoint`` does.
        loggers: Lightning loggers.
        plugins: Lightning plugins.

    Raises:
        InputError: If a callback would fight the trainer for the optimizer's steps.
    """
    _refuse_accumulation_schedulers(callbacks)
    with quiet_lightning():
        trainer = pl.Trainer(
            **run_placement(args, model),
            callbacks=list(callbacks),
            logger=list(loggers) or False,
            plugins=list(plugins) or None,
            profiler=Unprofiled(),
            default_root_dir=args.output_dir,
            # The plan counts the steps and the bridge stops the run; with limits of its own, Lightning would
            # validate or stop in the wrong place.
            max_steps=-1,
            max_epochs=plan.num_train_epochs if plan else 1,
            accumulate_grad_batches=args.gradient_accumulation_steps if plan else 1,
            check_val_every_n_epoch=sys.maxsize,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            use_distributed_sampler=False,
            # User hooks may keep tensors of an evaluation and differentiate them later.
            inference_mode=False,
            enable_model_summary=False,
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
            enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        )
    take_losses_undivided(trainer)
    pass_batches_directly(trainer)
    if inside_worker():
        run_without_launcher(trainer.strategy)
    if args.enable_jit_checkpoint:
        leave_signals_alone(trainer)
    else:
        end_at_batches_alone(trainer, on_sigterm=end_children)
    return trainer


def _refuse_accumulation_schedulers(callbacks: Sequence[Callback]) -> None:
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in callbacks):
        raise InputError(
            "`GradientAccumulationScheduler` was passed in `lightning_callbacks`, but the trainer counts accumulation "
            "windows itself; remove it and set `gradient_accumulation_steps` in `TrainingArguments`."
        )
