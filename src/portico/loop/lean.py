"""Faster versions of Lightning's loops over batches, which leave out work without a visible effect.

They only save time: ``PORTICO_LIGHTNING_SHORTCUTS=0`` leaves everything to Lightning's own loops, with equal numbers.
``benchmarks/step_overhead.py`` measures what they save, and docs/comparison.md has the figures. "Public:" is explained
in :mod:`portico.compat.lightning`.
"""

import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import ParallelStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.optim import Optimizer
from typing_extensions import override

from portico.compat.lightning import USES_SHORTCUTS, DataFetcher, DataLoaderIterDataFetcher, EpochLoop, EvaluationLoop
from portico.distributed.model_parallel import ShardedStrategy
from portico.distributed.strategies import ModelDDPStrategy

if TYPE_CHECKING:
    from portico.compat.annotations import Batch


class LeanEpochLoop(EpochLoop):
    """Lightning's loop over the batches of an epoch, without the work that has no visible effect.

    Hooks, their order and arguments, the counts of progress, what ``self.log`` collects and the name of the current
    hook are the same as in Lightning. The loop omits calls of undefined hooks, a log record and a profiler's context
    around each call, and checks whose result cannot change within an epoch. Lightning's own methods handle the unusual
    cases: the first batch after a resume, a fit under ``no_grad``, and forward, backward and step under a strategy or
    a precision that defines one of them. Public: none.
    """

    def __init__(self, pl_trainer: pl.Trainer, min_steps: int | None = None, max_steps: int = -1) -> None:
        super().__init__(pl_trainer, min_steps, max_steps)
        self.takes_plain_steps = _takes_plain_steps(pl_trainer.strategy)
        self.val_loop = LeanEvaluationLoop(
            pl_trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False
        )

    @override
    def on_run_start(self, data_fetcher: DataFetcher) -> None:
        super().on_run_start(data_fetcher)
        pl_trainer = self.trainer
        self.hooks = _DefinedHooks(pl_trainer)
        self.is_lean = not (
            isinstance(data_fetcher, DataLoaderIterDataFetcher)
            or self._should_check_val_epoch()
            or type(pl_trainer.lightning_module).on_train_batch_start is not pl.LightningModule.on_train_batch_start
            or any(config.reduce_on_plateau for config in pl_trainer.lr_scheduler_configs)
        )

    @property
    @override
    def done(self) -> bool:
        if self._restarting or self.trainer.should_stop or self.max_steps != -1:
            return super().done
        return self._num_ready_batches_reached()

    @override
    def advance(self, data_fetcher: DataFetcher) -> None:
        if self._restarting or not self.is_lean or not torch.is_grad_enabled():
            super().advance(data_fetcher)
            return
        pl_trainer = self.trainer
        progress = self.batch_progress
        results = self._results
        self.val_loop._restarting = False
        if pl_trainer.world_size > 1:
            self._broadcast_sigterm_tensor()
        batch_idx = progress.current.ready
        batch, _, _ = next(data_fetcher)
        progress.is_last_batch = data_fetcher.done
        hooks, connector = self.hooks, pl_trainer._logger_connector
        if not self.takes_plain_steps:
            batch = pl_trainer.precision_plugin.convert_input(batch)
            batch = pl_trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        progress.increment_ready()
        connector._first_loop_iter = connector._first_loop_iter is None
        results.batch = batch
        results.batch_size = results.dataloader_idx = None
        hooks.call_callbacks("on_train_batch_start", batch, batch_idx)
        hooks.call_on(pl_trainer.strategy, "on_train_batch_start", batch, batch_idx)
        progress.increment_started()
        self.makes_step = not self._should_accumulate()
        if self.takes_plain_steps:
            output = self._optimize(batch, batch_idx)
        else:
            kwargs = OrderedDict(batch=batch, batch_idx=batch_idx)
            output = self.automatic_optimization.run(pl_trainer.optimizers[0], batch_idx, kwargs)
        progress.increment_processed()
        if self.makes_step:
            self._update_learning_rates("step", update_plateau_schedulers=False)
        if self._num_ready_batches_reached():
            self._update_learning_rates("epoch", update_plateau_schedulers=False)
        hooks.call_callbacks("on_train_batch_end", output, batch, batch_idx)
        hooks.call_on(pl_trainer.lightning_module, "on_train_batch_end", output, batch, batch_idx)
        if results:
            connector.on_batch_end()
        results.batch = results.batch_size = None
        progress.increment_completed()
        if results:
            connector.update_train_step_metrics()

    @override
    def on_advance_end(self, data_fetcher: DataFetcher) -> None:
        if not self.is_lean or self.trainer.should_stop or self.trainer.received_sigterm:
            super().on_advance_end(data_fetcher)
        elif not self._should_accumulate():
            self._batches_that_stepped += 1

    @override
    def _update_learning_rates(self, interval: str, update_plateau_schedulers: bool) -> None:
        if not self.is_lean:
            super()._update_learning_rates(interval, update_plateau_schedulers)
            return
        for config in () if update_plateau_schedulers else self.trainer.lr_scheduler_configs:
            index = self.batch_idx if interval == "step" else self.trainer.current_epoch
            if config.interval == interval and (index + 1) % config.frequency == 0:
                self.scheduler_progress.increment_ready()
                self.hooks.call_on(self.trainer.lightning_module, "lr_scheduler_step", config.scheduler, None)
                self.scheduler_progress.increment_completed()

    def _optimize(self, batch: "Batch", batch_idx: int) -> dict[str, torch.Tensor]:
        """Run forward and backward, and the optimizer's step at the end of a window; return the step's loss."""
        pl_trainer = self.trainer
        module = pl_trainer.lightning_module
        strategy = pl_trainer.strategy
        hooks = self.hooks
        progress = self.automatic_optimization.optim_progress.optimizer
        losses: dict[str, torch.Tensor] = {}

        def closure() -> torch.Tensor:
            loss: torch.Tensor = hooks.call_on(module, "training_step", batch, batch_idx)
            losses["loss"] = loss.detach()
            if self.automatic_optimization._skip_backward:
                return losses["loss"]
            if batch_idx % pl_trainer.accumulate_grad_batches == 0:
                optimizer = pl_trainer.optimizers[0]
                progress.zero_grad.increment_ready()
                hooks.call("on_before_zero_grad", optimizer)
                progress.zero_grad.increment_started()
                hooks.call_on(module, "optimizer_zero_grad", pl_trainer.current_epoch, batch_idx, optimizer)
                progress.zero_grad.increment_completed()
            hooks.call("on_before_backward", loss)
            module.backward(loss)
            hooks.call("on_after_backward")
            strategy.post_backward(loss)
            return losses["loss"]

        if not self.makes_step:
            with strategy.block_backward_sync() if isinstance(strategy, ParallelStrategy) else nullcontext():
                closure()
        else:
            progress.step.increment_ready()
            optimizer = strategy._lightning_optimizers[0]
            hooks.call_on(module, "optimizer_step", pl_trainer.current_epoch, batch_idx, optimizer, closure)
            progress.step.increment_completed()
        return losses


def step_optimizer(pl_trainer: pl.Trainer, optimizer: Optimizer, closure: Callable[[], object]) -> None:
    """Run ``closure``, the hooks after it and the step of ``optimizer``: here in a lean loop, else by the strategy."""
    loop, module = pl_trainer.fit_loop.epoch_loop, pl_trainer.lightning_module
    if not (isinstance(loop, LeanEpochLoop) and loop.is_lean and loop.takes_plain_steps):
        pl_trainer.strategy.optimizer_step(optimizer, closure, module)
        return
    closure()
    loop.hooks.call("on_before_optimizer_step", optimizer)
    loop.hooks.call_on(
        module,
        "configure_gradient_clipping",
        optimizer,
        gradient_clip_val=pl_trainer.gradient_clip_val,
        gradient_clip_algorithm=pl_trainer.gradient_clip_algorithm,
    )
    optimizer.step()


class LeanEvaluationLoop(EvaluationLoop):
    """Lightning's loop over the batches of an evaluation, lean as :class:`LeanEpochLoop` is. Public: none."""

    def __init__(self, pl_trainer: pl.Trainer, *options: Any, **more: Any) -> None:
        super().__init__(pl_trainer, *options, **more)
        self.takes_plain_steps = _takes_plain_steps(pl_trainer.strategy)

    @override
    def reset(self) -> None:
        super().reset()
        self.hooks = _DefinedHooks(self.trainer)
        fetcher = self._data_fetcher
        assert fetcher is not None, "made by the method of the base class"
        self.is_lean = (
            not isinstance(fetcher, DataLoaderIterDataFetcher)
            and self.num_dataloaders == 1
            and not self.trainer.sanity_checking
        )
        self._stage_name = "test" if self.trainer.testing else "validation"

    @override
    def _evaluation_step(
        self, batch: "Batch", batch_idx: int, dataloader_idx: int, dataloader_iter: Iterator[Any] | None
    ) -> None:
        pl_trainer = self.trainer
        progress = self.batch_progress
        results = self._results
        if not self.is_lean:
            super()._evaluation_step(batch, batch_idx, dataloader_idx, dataloader_iter)
            return
        hooks = self.hooks
        connector = pl_trainer._logger_connector
        stage = self._stage_name
        if not self.takes_plain_steps:
            batch = pl_trainer.strategy.batch_to_device(
                pl_trainer.precision_plugin.convert_input(batch), dataloader_idx=0
            )
        progress.increment_ready()
        connector._first_loop_iter = connector._first_loop_iter is None
        results.batch = batch
        results.batch_size = results.dataloader_idx = None
        hooks.call(f"on_{stage}_batch_start", batch, batch_idx)
        progress.increment_started()
        runner = pl_trainer.lightning_module if self.takes_plain_steps else pl_trainer.strategy
        output = hooks.call_on(runner, f"{stage}_step", batch, batch_idx)
        progress.increment_processed()
        hooks.call(f"on_{stage}_batch_end", output, batch, batch_idx)
        if results:
            connector.on_batch_end()
        results.batch = results.batch_size = None
        progress.increment_completed()
        self._has_run = True
        if results:
            connector.update_eval_step_metrics(self._seen_batches_per_dataloader[dataloader_idx])
        self._seen_batches_per_dataloader[dataloader_idx] += 1
        if not progress.is_last_batch and pl_trainer.received_sigterm:
            raise SIGTERMException


def _takes_plain_steps(strategy: Strategy) -> bool:
    """Return whether ``strategy`` adds nothing to a step but what the loops above call, so that they may run it.

    Our strategies for several processes work inside the model, and mixed precision without a scaler only casts, which
    :func:`portico.distributed.precision.autocast_forward` does.
    """
    precision = strategy.precision_plugin
    only_casts = type(precision) is MixedPrecision and precision.scaler is None
    is_plain = type(strategy) in (SingleDeviceStrategy, ModelDDPStrategy, ShardedStrategy)
    return is_plain and (only_casts or type(precision) is Precision)


class _DefinedHooks:
    """Calls only the hooks that are overridden, under their name: Lightning's base classes define empty hooks."""

    def __init__(self, pl_trainer: pl.Trainer) -> None:
        self.trainer = pl_trainer
        self.module = pl_trainer.lightning_module

    def call(self, name: str, *args: object) -> None:
        """Call the hook of the callbacks, then the hook of the module."""
        self.call_callbacks(name, *args)
        self.call_on(self.module, name, *args)

    def call_callbacks(self, name: str, *args: object) -> None:
        """Call the hook of each callback."""
        nothing, state = getattr(pl.Callback, name), self.module.__dict__
        outer, state["_current_fx_name"] = state["_current_fx_name"], name
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]  # set by a connector
            hook = getattr(callback, name)
            if getattr(hook, "__func__", hook) is not nothing:
                hook(self.trainer, self.module, *args)
        state["_current_fx_name"] = outer

    def call_on(self, owner: pl.LightningModule | Strategy, name: str, *args: object, **kwargs: object) -> Any:
        """Call the hook of the module or of the strategy, and return what it returned."""
        hook = getattr(owner, name)
        if getattr(hook, "__func__", hook) is getattr(pl.LightningModule, name, None):
            return None
        state = self.module.__dict__
        outer, state["_current_fx_name"] = state["_current_fx_name"], name
        output = hook(*args, **kwargs)
        state["_current_fx_name"] = outer
        return output


def use_lean_loops(pl_trainer: pl.Trainer) -> None:
    """Make ``pl_trainer`` use the lean loops, and restore only the handlers of signals that Lightning may set.

    By itself Lightning restores all handlers after a run, also those that a callback has set. Public: none.
    """
    if not USES_SHORTCUTS:
        return
    signals = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)}
    requeue = getattr(pl_trainer._accelerator_connector.cluster_environment, "requeue_signal", None)
    if requeue is not None:
        signals.add(requeue)

    def current_handlers() -> dict[Any, Any]:
        return {number: signal.getsignal(number) for number in signals}

    pl_trainer._signal_connector._get_current_signal_handlers = current_handlers  # type: ignore[method-assign]
    if type(pl_trainer.profiler) is PassThroughProfiler:  # type: ignore[attr-defined]  # set by a connector
        loop = pl_trainer.fit_loop
        loop.epoch_loop = LeanEpochLoop(pl_trainer, loop.min_steps, loop.max_steps)
        validating, testing = RunningStage.VALIDATING, RunningStage.TESTING
        pl_trainer.validate_loop = LeanEvaluationLoop(
            pl_trainer, TrainerFn.VALIDATING, validating, inference_mode=False
        )
        pl_trainer.test_loop = LeanEvaluationLoop(pl_trainer, TrainerFn.TESTING, testing, inference_mode=False)
