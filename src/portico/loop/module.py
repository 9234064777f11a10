"""The ``LightningModule`` under the trainer: it decides *when*; the methods that users override decide *what*.

:mod:`portico.loop.run` has a table of the hooks; here they are in the order in which Lightning calls them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import Strategy
from torch import nn

from portico import observers
from portico.checkpoint.weights import materialize
from portico.compat import lightning as lightning_compat
from portico.distributed.accelerator import Accelerator
from portico.distributed.model_parallel import ShardedStrategy, is_empty
from portico.distributed.precision import disabling_autocast
from portico.distributed.processes import connect
from portico.errors import InputError
from portico.loop.evaluation import EvaluationSession, LoopEvaluation
from portico.loop.lean import step_optimizer
from portico.loop.model_setup import describe_model, model_like
from portico.loop.optim import STEP_AFTER_EVALUATION, schedule_new_groups, scheduler_config

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from portico.compat.annotations import Batch
    from portico.loop.hooks import TrainerHooks
    from portico.loop.run import TrainingRun


_MODEL_KEY = "portico_model"  # in a checkpoint of Lightning


class TrainerModule(pl.LightningModule):
    """Calls the trainer's methods from Lightning's hooks (the table is in :mod:`portico.loop.run`).

    The user's own ``lightning.Trainer`` can run it too (:mod:`portico.loop.plain_trainer`), and
    ``TrainerModule.load_from_checkpoint(path, trainer=trainer)`` loads Lightning's checkpoints.

    Args:
        model: The model; by default the model of ``trainer``, or else a new one like the model in a checkpoint.
        trainer: The trainer whose methods are called; without a trainer the module only computes ``module(**inputs)``.
    """

    runs_steps_on_host = False  # although the strategy runs programs

    def __init__(self, model: nn.Module | None = None, trainer: "TrainerHooks | None" = None) -> None:
        super().__init__()
        if model is None and trainer is not None:
            model = trainer.model
        self.model: Any = model
        self.hf_trainer: TrainerHooks = trainer  # type: ignore[assignment]  # None: only `forward` can be called
        self.run: TrainingRun = None  # type: ignore[assignment]  # the trainer sets it before a fit
        self.evaluation: EvaluationSession | None = None
        self._own_evaluation: LoopEvaluation | None = None  # while Lightning evaluates by itself
        self._stays_on_device = False
        self._optimizer_in_use: Any = None  # by Lightning's strategy
        self._scheduler_of_lightning: Any = None  # as made by `configure_optimizers`
        self._scaler: Any = None  # of gradients in this run
        self._casts = True  # whether Lightning may cast in a whole step

    def set_model(self, model: nn.Module | None) -> None:
        """Use ``model``, which the user may have replaced since the last run; ``None`` releases the last one."""
        self.model = model
        if model is None and self.run is not None:
            self.run.release_model()

    def set_wrapped_model(self, wrapped: nn.Module) -> None:
        """Train through ``wrapped``: the strategy's wrapper around the model."""
        self.hf_trainer.model_wrapped = wrapped

    def __deepcopy__(self, memo: dict[int, Any]) -> "TrainerModule":
        """Return a module around a copy of the model, of the same trainer unless the trainer is what is copied.

        Callbacks that average weights copy the module they average, and not its trainer.
        """
        return type(self)(deepcopy(self.model, memo), memo.get(id(self.hf_trainer), self.hf_trainer))

    @contextmanager
    def staying_on_device(self) -> Iterator[None]:
        """Inside the block, keep model and optimizer where they are, as transformers does, unless the user places it.

        Lightning's ``Strategy.teardown`` moves both to the CPU after each loop.
        """
        before, self._stays_on_device = self._stays_on_device, self.hf_trainer.place_model_on_device
        strategy = self.hf_trainer._portico.lightning_trainer.strategy
        would_move = self._stays_on_device and strategy.root_device.type != "cpu"
        try:
            with lightning_compat.keep_optimizers_on_device(strategy) if would_move else nullcontext():
                yield
        finally:
            self._stays_on_device = before

    def cpu(self) -> Self:
        return self if self._stays_on_device else super().cpu()

    def shard_model(self, strategy: Strategy, *, materializes: bool = True) -> None:
        """Shard the model, if ``strategy`` does so, before its weights are loaded or its optimizer is made.

        With ``materializes``, a model on the meta device loads its weights from the folder that its configuration
        names.
        """
        if not isinstance(strategy, ShardedStrategy):
            return
        connect(strategy)
        model = self.hf_trainer.model
        strategy.shard_model(model, self.hf_trainer.optimizer)
        if materializes and is_empty(model):
            materialize(model)

    def start_engine(self) -> None:
        """Let a strategy whose engine runs the model start it for an evaluation, unless a training has done so."""
        self.hf_trainer._portico.start_engine()

    @property
    def closes_window(self) -> bool:
        """Whether the batch being trained on is the last of its accumulation window."""
        return self.run.closes_window

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    # Under the user's own `lightning.Trainer`

    @property
    def is_under_plain_trainer(self) -> bool:
        """Whether the user's own ``lightning.Trainer`` runs the module, instead of the facade's."""
        return self.run is not None and self.run.is_lightnings

    def configure_callbacks(self) -> list[Callback]:
        if self.hf_trainer is None:
            raise InputError(
                "This module was loaded without a trainer, so it has no data, loss or optimizer, and only computes "
                "`module(**inputs)`; load it with `TrainerModule.load_from_checkpoint(path, trainer=trainer)`."
            )
        return self.hf_trainer._portico.get_lightning_callbacks(self)

    def train_dataloader(self) -> Any:
        return self.hf_trainer._portico.datamodule.train_dataloader()

    def val_dataloader(self) -> Any:
        return self.hf_trainer._portico.datamodule.val_dataloader()

    def test_dataloader(self) -> Any:
        return self.hf_trainer._portico.datamodule.test_dataloader()

    predict_dataloader = test_dataloader

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[_MODEL_KEY] = describe_model(self.model)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.model is None:
            self.model = model_like(checkpoint.get(_MODEL_KEY))

    # Training

    def configure_optimizers(self) -> Any:
        self.hf_trainer._portico.renew_optimizer_and_scheduler(self.run.plan.max_steps)
        optimizer = self.hf_trainer.optimizer
        config = scheduler_config(self.hf_trainer.lr_scheduler, optimizer)
        self._scheduler_of_lightning = config["lr_scheduler"]["scheduler"] if config else None
        return {"optimizer": optimizer, **config}

    def on_fit_start(self) -> None:
        run = self.run
        lightning_compat.skip_lightning_backward(self.trainer, run.backward.inside_step)
        schedule_new_groups(self.hf_trainer.lr_scheduler, self.hf_trainer.optimizer)
        run.restore()
        self._optimizer_in_use = self.hf_trainer.optimizer
        self._scaler = self.hf_trainer.accelerator.scaler
        self._casts = isinstance(self.trainer.precision_plugin, MixedPrecision)

    def on_train_epoch_start(self) -> None:
        # After the callbacks, which may have added parameters to the optimizer, as `BaseFinetuning` does.
        schedule_new_groups(self.hf_trainer.lr_scheduler, self.hf_trainer.optimizer)

    def training_step(self, batch: "Batch", batch_idx: int) -> torch.Tensor:
        """Call the trainer's ``training_step``; Lightning differentiates the returned loss unless the step did so."""
        run = self.run
        for observer in observers.active:
            observer.on_training_step_begin(self.hf_trainer, run.model_wrapped, batch)
        with disabling_autocast(self.trainer.strategy) if self._casts else nullcontext():
            loss = self.hf_trainer.training_step(run.model_wrapped, batch, run.num_items_in_batch)
        for observer in observers.active:
            observer.on_training_step_end(self.hf_trainer, run.model_wrapped, loss)
        if run.backward.inside_step:
            run.add_loss(loss, batch)
            return loss
        run.step_to_count = (loss, batch)
        return run.backward.take_loss()

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass, or let an optimizer run it that updates weights during the pass."""
        optimizer = self.hf_trainer.optimizer
        if hasattr(optimizer, "fused_backward"):  # LOMO
            optimizer.fused_backward(loss, self.hf_trainer._get_learning_rate())
        else:
            super().backward(loss, *args, **kwargs)

    def on_after_backward(self) -> None:
        # `None` if backward ran inside a step, which has not returned its loss yet.
        run = self.run
        if run.step_to_count is not None:
            run.add_loss(*run.step_to_count)

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if self._scaler is not None and optimizer.unscales_gradients:
            # As accelerate does before it takes the norm; Lightning leaves unscaling to these optimizers.
            self._scaler.unscale_(optimizer)
        # Clipped in the order of `model.parameters()`, as accelerate does. Lightning goes through the optimizer's
        # groups; a norm is a float sum, whose last bits depend on the order (4e-5 after 26 steps, measured).
        self.run.prepare_optimizer_step()
        current = self.hf_trainer.optimizer
        if current is not self._optimizer_in_use:
            # Replaced on the trainer since the start, by a callback for example; transformers steps it from here on.
            self.trainer.strategy.optimizers = [current]
            optimizer.replace(current)
            self._optimizer_in_use = current

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: "Optimizer | LightningOptimizer",
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Run forward and backward, then step if Hugging Face's counting has a step here (``run.makes_step``)."""
        assert optimizer_closure is not None
        assert isinstance(optimizer, LightningOptimizer)
        run = self.run
        # Lightning also steps on the last batch of a stream, even inside a window, where Hugging Face does not.
        if not run.makes_step:
            optimizer_closure()
            return
        steppable: Any = _ClosureFirst(optimizer.optimizer)
        step_optimizer(self.trainer, steppable, optimizer_closure)
        accelerator = self.hf_trainer.accelerator
        accelerator.optimizer_step_was_skipped = not steppable.has_stepped and accelerator.may_skip_steps
        run.finish_optimizer_step()

    def lr_scheduler_step(self, scheduler: "LRScheduler", metric: object) -> None:
        # A step skipped by the gradient scaler does not move the scheduler (transformers 5.23, `_run_epoch`).
        accelerator = self.hf_trainer.accelerator
        # The trainer's, which may have been replaced since Lightning was given one.
        current = self.hf_trainer.lr_scheduler
        has_stepped = accelerator.gradient_state.sync_gradients and not accelerator.optimizer_step_was_skipped
        if has_stepped and self.is_under_plain_trainer and scheduler is not self._scheduler_of_lightning:
            # A callback of the user's `lightning.Trainer` has replaced it, as `StochasticWeightAveraging` does.
            super().lr_scheduler_step(scheduler, metric)
        elif has_stepped and not isinstance(current, STEP_AFTER_EVALUATION):
            current.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: Lightning calls this before an evaluation, whose caller may still need the gradients."""

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: "Optimizer") -> None:
        """Do nothing: gradients are zeroed after the step, as in transformers; Lightning zeroes before backward."""

    def on_train_end(self) -> None:
        # Here, while strategy and model are still set up: the best model may be loaded.
        self.run.finish()

    # Evaluation

    def on_validation_epoch_start(self) -> None:
        if self.evaluation is None:
            self._own_evaluation = LoopEvaluation(self.hf_trainer, self.trainer.val_dataloaders, prefix="eval")

    def on_test_epoch_start(self) -> None:
        if self.evaluation is None:
            self._own_evaluation = LoopEvaluation(self.hf_trainer, self.trainer.test_dataloaders, prefix="test")

    def validation_step(self, batch: "Batch", batch_idx: int, dataloader_idx: int = 0) -> None:
        if self._own_evaluation is not None and self._own_evaluation.is_innermost:
            self._own_evaluation.begin_loader(dataloader_idx)
        assert self.evaluation is not None
        with disabling_autocast(self.trainer.strategy):
            self.evaluation.step(batch, batch_idx)

    # A prediction runs in Lightning's test loop (`portico.compat.lightning.run_nested_evaluation` says why).
    test_step = validation_step

    def predict_step(self, batch: "Batch", batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Return the logits of a batch, as ``preprocess_logits_for_metrics`` makes them."""
        trainer = self.hf_trainer
        with disabling_autocast(self.trainer.strategy):
            _, logits, labels = trainer.prediction_step(self.model, batch, prediction_loss_only=False)
        if logits is not None and trainer.preprocess_logits_for_metrics is not None:
            logits = trainer.preprocess_logits_for_metrics(logits, labels)
        return logits

    def on_validation_epoch_end(self) -> None:
        if self._finish_own_evaluation():
            return
        # Before the loop ends: Lightning's `EarlyStopping` reads the metrics at its end.
        assert self.evaluation is not None
        lightning_compat.publish_metrics(self.trainer, self.evaluation.finish().metrics or {})

    def abandon_evaluation(self) -> None:
        """Discard an evaluation started by Lightning that ended with an error."""
        self.evaluation = self._own_evaluation = None

    def _finish_own_evaluation(self) -> bool:
        """End an evaluation that Lightning started, if there is one, and log its metrics; return whether there was."""
        own, trainer = self._own_evaluation, self.hf_trainer
        if own is None or not own.is_innermost:
            return False
        metrics = own.finish()
        self._own_evaluation = None
        if not own.is_sanity_check:
            epoch = {} if trainer.state.epoch is None else {"epoch": trainer.state.epoch}
            trainer._portico.record_in_history({**metrics, **epoch})
            event = getattr(trainer.callback_handler, "on_evaluate" if own.prefix == "eval" else "on_predict")
            trainer.control = event(trainer.args, trainer.state, trainer.control, metrics)
            if not self.trainer.barebones:
                dtype = torch.float32 if self.device.type == "mps" else torch.float64
                numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
                exact = {name: torch.tensor(value, dtype=dtype) for name, value in numbers.items()}
                self.log_dict(exact, sync_dist=trainer.args.world_size > 1)
        return True

    def on_test_epoch_end(self) -> None:
        if self._finish_own_evaluation():
            return
        assert self.evaluation is not None
        metrics = self.evaluation.finish().metrics or {}
        # Inside a fit they are hidden from callbacks that monitor the fit.
        if not self.hf_trainer.is_in_train:
            lightning_compat.publish_metrics(self.trainer, metrics)

    def on_validation_model_eval(self) -> None:
        """Do nothing: the session sets evaluation mode, in which the model stays afterwards, as in transformers."""

    on_validation_model_train = on_test_model_eval = on_test_model_train = on_validation_model_eval


class BackwardPass:
    """What ``accelerator.backward(loss)`` does during one training run.

    Hugging Face's ``training_step`` calls it and has the gradients afterwards; Lightning's ``training_step`` returns
    a loss for Lightning to differentiate. Which of the two applies is decided once, when the run is set up:

    - In the trainer's own ``training_step`` the call is the last line, so the loss is kept, the step returns it, and
      Lightning runs backward. A strategy may then wrap the whole module (DeepSpeed, FSDP, Lightning's DDP). If an
      overridden ``compute_loss`` calls it too, only the last loss is kept.
    - A ``training_step`` that a subclass overrides may use the gradients in its next line. Backward runs inside the
      call, as often as it is called, and Lightning skips the pass that it would run.

    Outside a run ``accelerator.backward(loss)`` is ``loss.backward()``.

    Args:
        run_backward: Runs backward on a loss through the strategy.
        inside_step: Whether backward runs inside ``training_step``.
    """

    def __init__(self, run_backward: Callable[..., None], *, inside_step: bool) -> None:
        self.inside_step = inside_step
        self._run_backward = run_backward
        self._kept_loss: torch.Tensor | None = None

    @contextmanager
    def serving(self, accelerator: Accelerator) -> Iterator[None]:
        """Inside the block, make ``accelerator.backward`` call this object."""
        before, accelerator.run_backward = accelerator.run_backward, self
        try:
            yield
        finally:
            accelerator.run_backward = before

    def __call__(self, loss: torch.Tensor, **kwargs: object) -> None:
        if self.inside_step:
            self._run_backward(loss, **kwargs)
            return
        if self._kept_loss is not None:
            # `compute_loss` may differentiate further losses, whose gradients add up.
            self._run_backward(self._kept_loss)
        self._kept_loss = loss

    def take_loss(self) -> torch.Tensor:
        """Return the loss of the step that just ended, for Lightning to differentiate."""
        loss, self._kept_loss = self._kept_loss, None
        if loss is None:
            raise RuntimeError(
                "`training_step` did not call `accelerator.backward`, so there is no loss to differentiate; call "
                "`self.accelerator.backward(loss)` in it."
            )
        return loss


def _delegate_to_optimizer(name: str) -> property:
    """Return a property that reads, sets and deletes the attribute ``name`` of the wrapped optimizer."""
    return property(
        lambda self: getattr(self._optimizer, name),
        lambda self, value: setattr(self._optimizer, name, value),
        lambda self: delattr(self._optimizer, name),
    )


class _ClosureFirst:
    """An optimizer that runs the closure, then takes a plain step.

    Lightning passes the closure to ``optimizer.step``, but some optimizers accept none, and hooks registered on a
    step must find the gradients computed.

    Attributes:
        has_stepped: Whether the step was taken; a gradient scaler may skip it.
        unscales_gradients: Whether the optimizer divides by the scale itself, and leaves weights alone on overflow.
    """

    # A gradient scaler sets what a fused optimizer is to divide by, and deletes it after the step.
    grad_scale = _delegate_to_optimizer("grad_scale")
    found_inf = _delegate_to_optimizer("found_inf")

    def __init__(self, optimizer: "Optimizer") -> None:
        self.has_stepped = False
        self.replace(optimizer)

    def replace(self, optimizer: "Optimizer") -> None:
        """Step ``optimizer`` from now on."""
        self._optimizer = optimizer
        self.unscales_gradients = bool(getattr(optimizer, "_step_supports_amp_scaling", False))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        result = closure() if closure is not None else None
        self.has_stepped = True
        self._optimizer.step(**kwargs)
        return result
