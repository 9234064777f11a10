"""Lightning's hooks told as Hugging Face's events.

In the order of a step; ``B`` marks this bridge, ``M`` the module, ``F`` a method of the facade:

=============================================  ==============================================================
Lightning                                      Hugging Face
=============================================  ==============================================================
(the facade's constructor)                     F ``on_init_end``
``configure_optimizers``                       M ``create_optimizer``, ``create_scheduler``
``on_fit_start``                               M optimizer, schedule and loop counts of a resumed run
``on_train_start``                             B ``on_train_begin``, then ``eval_on_start``
``on_train_epoch_start``                       B ``on_epoch_begin``
(first batch of the epoch is asked for)        F batches of the window, counted; random states of a resumed run
``on_train_batch_start``                       B ``on_step_begin``, at the first batch of a window
``training_step``                              M ``training_step`` -> ``compute_loss``
``on_after_backward``                          M loss sum, operations and tokens counted
``configure_gradient_clipping``                M clipping, gradient norm, ``on_pre_optimizer_step``
``optimizer_step``                             M the step, ``on_optimizer_step``, learning rate noted
``lr_scheduler_step``                          M schedule, unless it steps after evaluations
``on_train_batch_end``, window open            B ``on_substep_end``
``on_train_batch_end``, window closed          B gradients zeroed, ``global_step += 1``, ``on_step_end``, then
                                               F ``on_log``, ``on_evaluate``, ``on_save``
``validation_step`` / ``test_step``            M ``prediction_step``, ``on_prediction_step``
``on_train_epoch_end``                         B ``on_epoch_end``, then F ``on_log``, ``on_evaluate``, ``on_save``
``on_train_end``                               M final log, best model, ``on_train_end``
=============================================  ==============================================================

Lightning's ``on_before_optimizer_step`` comes before clipping, too early for ``on_pre_optimizer_step``; its
``optimizer_zero_grad`` comes before backward, where Hugging Face zeroes after the step.
"""

from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from portico.lightning_internals import restarted_mid_epoch

if TYPE_CHECKING:
    from portico.state import TrainingRun


class EventBridge(Callback):
    """The callback at index 0: it moves the facade's state before any other Lightning callback looks at it.

    The step count must not live in module hooks, which run after callbacks: a ``ModelCheckpoint`` would store the
    step before.

    Args:
        run: The training run whose state is moved.
    """

    def __init__(self, run: "TrainingRun") -> None:
        self.run = run

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin the run; inside an epoch, begin that epoch too, since Lightning leaves its hook out there."""
        self.run.begin()
        if restarted_mid_epoch(trainer):
            self.run.begin_epoch(trainer.current_epoch)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin an epoch."""
        self.run.begin_epoch(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin a step at the first batch of its window."""
        self.run.begin_batch(batch_idx)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End a step at the last batch of its window, then stop if either side asks to."""
        self.run.end_batch(batch_idx)
        self._agree_on_stopping(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the epoch."""
        self._agree_on_stopping(trainer)
        self.run.end_epoch()
        self._agree_on_stopping(trainer)

    def _agree_on_stopping(self, trainer: pl.Trainer) -> None:
        control = self.run.facade.control
        stop = control.should_training_stop or trainer.should_stop
        control.should_training_stop = trainer.should_stop = stop
