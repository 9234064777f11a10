"""Every private name of Lightning that portico uses, in one place (read against Lightning 2.6.6).

A new Lightning release is judged by this file and its tests. Each docstring says why the name is needed and, after
"Public:", which documented API would replace it.
"""

import logging
import os
import signal
import sys
import threading
import warnings
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import cuda
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fetchers import _DataFetcher, _DataLoaderIterDataFetcher
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.loops.progress import _BatchProgress
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerStatus
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

if TYPE_CHECKING:
    from portico.compat.annotations import Batch
    from portico.data.datamodule import EvaluationFeed

CHECKED_VERSION = "2.6"
USES_SHORTCUTS = os.environ.get("PORTICO_LIGHTNING_SHORTCUTS") != "0"


# ---- 1. Needed for correct numbers ----

# Losses and gradients


class UnnormalizedLoss(ClosureResult):
    """A training step's result whose loss is not divided by ``accumulate_grad_batches``.

    Lightning always divides; the trainer has already divided by the real number of batches in the window, which is
    smaller at the end of an epoch. Public: return ``loss * accumulate_grad_batches``, which changes bits where
    ``(1 / n) * n`` is not 1 in float32 (n = 41 is the first).
    """

    @classmethod
    def from_training_step_output(cls, training_step_output: STEP_OUTPUT, normalize: int = 1) -> ClosureResult:
        if isinstance(training_step_output, torch.Tensor):
            return cls(training_step_output)
        return super().from_training_step_output(training_step_output, normalize=1)

    if USES_SHORTCUTS:

        def _clone_loss(self) -> None:
            # Lightning copies the loss in case it is changed in place; nothing here does that.
            if self.closure_loss is not None:
                self.loss = self.closure_loss.detach()


def keep_loss_scale(trainer: pl.Trainer) -> None:
    """Make ``trainer`` use :class:`UnnormalizedLoss`. Public: none."""
    trainer.fit_loop.epoch_loop.automatic_optimization.output_result_cls = UnnormalizedLoss


@contextmanager
def unscaled_losses(trainer: pl.Trainer) -> Iterator[None]:
    """Make ``trainer``, which belongs to the user, use :class:`UnnormalizedLoss` during the block. Public: none."""
    with _restored([(trainer.fit_loop.epoch_loop.automatic_optimization, "output_result_cls")]):
        keep_loss_scale(trainer)
        yield


def skip_lightning_backward(trainer: pl.Trainer, skip: bool) -> None:
    """Tell ``trainer`` not to run backward, because an overridden training step does.

    Public: ``automatic_optimization = False``, which also turns off accumulation, clipping and scheduler steps.
    """
    trainer.fit_loop._skip_backward = skip


def run_closure(
    precision: Precision, model: pl.LightningModule, optimizer: Optimizer, closure: Callable[[], Any]
) -> Any:
    """Run the closure of a step and the hooks after it, without the ``optimizer.step`` that a device makes itself.

    Public: none; ``Precision.optimizer_step`` always steps.
    """
    return precision._wrap_closure(model, optimizer, closure)


def without_autocast(strategy: Strategy) -> AbstractContextManager[Any]:
    """Return a context that disables the autocast that Lightning puts around a whole step.

    Under transformers only the model's forward casts. Public already; here because ``plugin.device`` is undocumented.
    """
    plugin = strategy.precision_plugin
    if isinstance(plugin, MixedPrecision):
        return torch.autocast(plugin.device, enabled=False)
    return nullcontext()


@contextmanager
def keep_gradients(module: pl.LightningModule) -> Iterator[None]:
    """Keep Lightning from zeroing the gradients of ``module`` before an evaluation: user code may still need them.

    Public: none; ``Trainer.validate`` zeroes them through this method.
    """
    module.__dict__["zero_grad"] = lambda set_to_none=True: None
    try:
        yield
    finally:
        del module.__dict__["zero_grad"]


# Progress of the loops


def continue_from(
    trainer: pl.Trainer, *, epoch: int, num_batches_done: int, batches_per_epoch: int, steps: int
) -> None:
    """Set the progress of the loops of ``trainer`` for a resumed run, in the form of Lightning's checkpoints.

    It continues with ``epoch`` (from 0), of which ``num_batches_done`` are done, after ``steps`` optimizer steps.
    Public: ``fit(ckpt_path=...)``, which needs a Lightning checkpoint and replays batches of an open epoch (measured).
    """
    names = ("ready", "started", "processed", "completed")
    loop = trainer.fit_loop
    state = loop.state_dict()
    mid_epoch = num_batches_done > 0
    for counts in state["epoch_progress"]["total"], state["epoch_progress"]["current"]:
        counts.update(ready=epoch + mid_epoch, started=epoch + mid_epoch, processed=epoch, completed=epoch)
    batches = state["epoch_loop.batch_progress"]
    num_batches_in_all = epoch * min(batches_per_epoch, sys.maxsize) + num_batches_done
    batches["total"].update(dict.fromkeys(names, num_batches_in_all))
    batches["current"].update(dict.fromkeys(names, num_batches_done))
    optimizer_steps = state["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    for progress in optimizer_steps, state["epoch_loop.scheduler_progress"]:
        progress["total"].update(ready=steps, completed=steps)
    state["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
    loop.load_state_dict(state)


def end_epoch_after(trainer: pl.Trainer, num_batches: int) -> None:
    """End the current epoch of ``trainer`` after ``num_batches``, fewer than it expected.

    A feed without a length would make Lightning fetch a batch ahead. Public: none.
    """
    fetcher = trainer.fit_loop._data_fetcher
    assert fetcher is not None, "an epoch is running"
    fetcher.length = num_batches


def restarted_mid_epoch(trainer: pl.Trainer) -> bool:
    """Return whether ``trainer`` continues inside an epoch: ``on_train_epoch_start`` is skipped. Public: none."""
    return bool(trainer.fit_loop.restarted_mid_epoch)


def given_train_loader(trainer: pl.Trainer) -> Any:
    """Return the loader that was given to ``trainer.fit``, or that of a data module; ``None`` for one of portico's.

    Public: ``trainer.train_dataloader``, which exists only after the hooks that need it.
    """
    source = trainer.fit_loop._data_source
    return None if _is_ours(source) else source.dataloader()


def validates_own_data(trainer: pl.Trainer) -> bool:
    """Return whether the fit of ``trainer`` validates on data of portico's module or data module. Public: none."""
    return _is_ours(trainer.fit_loop.epoch_loop.val_loop._data_source)


def _is_ours(source: _DataLoaderSource) -> bool:
    return source.instance is None or type(source.instance).__module__.startswith("portico.")


def use_train_loader(trainer: pl.Trainer, loader: Any) -> None:
    """Make the fit of ``trainer`` read ``loader``. Public: none from a hook."""
    trainer.fit_loop._data_source = _DataLoaderSource(loader, "train_dataloader")


def is_fast_dev_run(trainer: pl.Trainer) -> bool:
    """Return whether ``trainer`` tries out a few batches (``fast_dev_run``). Public: none; the attribute is not."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def overfits(trainer: pl.Trainer) -> bool:
    """Return whether ``trainer`` repeats the same batches (``overfit_batches``). Public: none."""
    return bool(trainer.overfit_batches > 0)  # type: ignore[attr-defined]


# Evaluations inside a fit


def can_nest_evaluation(trainer: pl.Trainer) -> bool:
    """Return whether the fit of ``trainer`` has set up its data, so that loops can be nested in it. Public: none."""
    return trainer.fit_loop._data_fetcher is not None


def run_nested_evaluation(trainer: pl.Trainer, feed: "EvaluationFeed", *, predicts: bool) -> None:
    """Run an evaluation inside another loop of ``trainer``: at any point of a fit, or of another evaluation.

    A prediction runs as Lightning's test does, so callbacks that wait for a validation (``EarlyStopping``,
    ``ModelCheckpoint``) do not count it as one. Public: none; ``Trainer.validate`` sets up and tears down a run.
    """
    state, connector = trainer.state, trainer._logger_connector
    outer = [(state, "fn"), (state, "stage"), (connector, "_first_loop_iter"), (connector, "_current_fx")]
    with _restored([*outer, (trainer.lightning_module, "_current_fx_name")]):
        if predicts:
            state.fn, trainer.testing = TrainerFn.TESTING, True
        else:
            state.fn = TrainerFn.FITTING if state.fn is TrainerFn.FITTING else TrainerFn.VALIDATING
            trainer.validating = True
        loop = trainer._evaluation_loop
        # The loop may be running already, in an evaluation around this one.
        with _restored([(loop, name) for name in vars(loop)]):
            loop._data_source = _DataLoaderSource(feed, f"{loop._stage.dataloader_prefix}_dataloader")
            loop._combined_loader, loop.restarting, loop.verbose = None, False, False
            loop.batch_progress = _BatchProgress()
            loop._results = _ResultCollection(training=False)
            loop.run()


@contextmanager
def _restored(attributes: Sequence[tuple[object, str]]) -> Iterator[None]:
    """Restore the ``(object, name of attribute)`` pairs after the block."""
    saved = [(owner, name, getattr(owner, name)) for owner, name in attributes]
    try:
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)


def plain_batch_sampler(sampler: object) -> Any:
    """Return the batch sampler inside the one that Lightning puts around it for a prediction. Public: none."""
    return sampler._batch_sampler if isinstance(sampler, _IndexBatchSamplerWrapper) else sampler


# Processes and devices


def relaunches_script(strategy: Strategy) -> bool:
    """Return whether ``strategy`` starts its processes by running the script again. Public: none."""
    return isinstance(getattr(strategy, "launcher", None), _SubprocessScriptLauncher)


def process_group_timeout(strategy: Strategy) -> timedelta:
    """Return how long a collective of ``strategy`` may take. Public: none."""
    return getattr(strategy, "_timeout", None) or timedelta(minutes=30)


def set_process_group_timeout(strategy: Strategy, timeout: timedelta) -> None:
    """Set how long a collective of ``strategy`` may take, before its process group is made. Public: none."""
    strategy._timeout = timeout  # type: ignore[attr-defined]


def launches_workers(strategy: Strategy) -> bool:
    """Return whether ``strategy`` spawns or forks worker processes for each call. Public: none."""
    return isinstance(getattr(strategy, "launcher", None), _MultiProcessingLauncher)


def forks_workers(strategy: Strategy) -> bool:
    """Return whether ``strategy`` forks its workers, which then need no pickled copy of the trainer. Public: none."""
    launcher = strategy.launcher
    return isinstance(launcher, _MultiProcessingLauncher) and launcher._start_method == "fork"


def drop_launcher(strategy: Strategy) -> None:
    """Make ``strategy``, in a worker, run the call in this process instead of launching workers. Public: none."""
    strategy._launcher = None


def wrap_in_ddp(strategy: DDPStrategy, model: nn.Module) -> DistributedDataParallel:
    """Return ``model`` in the wrapper that ``strategy`` puts around a ``LightningModule``.

    Public: ``DDPStrategy.configure_ddp``, which wraps the whole ``LightningModule``.
    """
    return strategy._setup_model(model)


def set_root_device(strategy: Strategy, device: torch.device) -> None:
    """Make ``strategy``, which runs in one process, run on ``device``. Public: a strategy built with it."""
    strategy._root_device = device  # type: ignore[attr-defined]


class MeshStrategy(ModelParallelStrategy):
    """``ModelParallelStrategy`` on any mesh, whose processes are connected before a module is attached.

    Public: ``ModelParallelStrategy.setup_environment``, whose mesh has two dimensions and goes to the module.
    """

    @override
    def setup_environment(self) -> None:
        self._setup_distributed()
        self._device_mesh = self.make_mesh()

    @abstractmethod
    def make_mesh(self) -> DeviceMesh:
        """Return the mesh of the run; the processes are connected."""

    @property
    def lightning_sizes(self) -> tuple[int, int]:
        """The sizes that Lightning's constructor was given, with its defaults: a replica for each machine."""
        data, tensor = self._data_parallel_size, self._tensor_parallel_size
        return (self.num_nodes if data == "auto" else data, self.num_processes if tensor == "auto" else tensor)


def mesh_options(strategy: ModelParallelStrategy) -> dict[str, Any]:
    """Return the arguments that ``strategy`` was made with. Public: none."""
    return {
        "data_parallel_size": strategy._data_parallel_size,
        "tensor_parallel_size": strategy._tensor_parallel_size,
        "save_distributed_checkpoint": strategy._save_distributed_checkpoint,
        "process_group_backend": strategy._process_group_backend,
        "timeout": strategy._timeout,
    }


# ---- 2. Shortcuts that only save time (PORTICO_LIGHTNING_SHORTCUTS=0 turns them off) ----
# What Lightning and this package add to a plain training step of a tiny model, in CPU microseconds: 459 without the
# lean loops, 304 with Lightning's own optimization inside them, 236 with theirs (transformers adds 453); to a batch of
# an evaluation: 323 without, 141 with them and the arrays of `portico.loop.outputs` (transformers 258).
# `benchmarks/step_overhead.py` measures both.


class NullProfiler(PassThroughProfiler):
    """Lightning's profiler that measures nothing, without its generator per hook.

    Public: a profiler class of ours is public API; only ``profile`` differs from the documented type.
    """

    _nothing: AbstractContextManager[None] = nullcontext()

    @override
    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return self._nothing


class FastModule:
    """A ``LightningModule`` with less work around each hook and batch.

    The name of the current hook is set without ``nn.Module.__setattr__``: Lightning does so twenty times a step.
    Public: none. Lightning's transfer of batches is skipped: the loaders and ``_prepare_inputs`` move them. Public:
    an override of ``transfer_batch_to_device``, which Lightning still looks up and traces for every batch.
    """

    if USES_SHORTCUTS:

        def __setattr__(self, name: str, value: object) -> None:
            if name == "_current_fx_name":
                self.__dict__[name] = value
            else:
                super().__setattr__(name, value)

        def _on_before_batch_transfer(self, batch: "Batch", dataloader_idx: int = 0) -> "Batch":
            return batch

        def _apply_batch_transfer_handler(
            self, batch: "Batch", device: torch.device | None = None, dataloader_idx: int = 0
        ) -> "Batch":
            return batch


class LeanEpochLoop(_TrainingEpochLoop):
    """Lightning's loop over the batches of an epoch, without the work that nobody notices.

    Hooks, their order and arguments, the counts of progress, what ``self.log`` collects and the name of the current
    hook are Lightning's. Left out are calls of hooks that nobody defines, a log record and a profiler's context around
    each call, and questions whose answer cannot change within an epoch. Lightning's own methods run what is unusual:
    the first batch after a resume, a fit under ``no_grad``, and forward, backward and step under a strategy or a
    precision that defines one of them. Public: none.
    """

    def __init__(self, trainer: pl.Trainer, min_steps: int | None = None, max_steps: int = -1) -> None:
        super().__init__(trainer, min_steps, max_steps)
        self.val_loop = LeanEvaluationLoop(
            trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False
        )

    @override
    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        super().on_run_start(data_fetcher)
        trainer = self.trainer
        self._hooks = _DefinedHooks(trainer)
        self._is_lean = not (
            isinstance(data_fetcher, _DataLoaderIterDataFetcher)
            or self._should_check_val_epoch()
            or _defines("on_train_batch_start", trainer.lightning_module, pl.LightningModule)
            or any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)
        )
        if self._is_lean:
            data_fetcher._start_profiler = data_fetcher._stop_profiler = _do_nothing
        self._runs_own_steps = _is_plain(trainer.strategy, _TRAINING_STEPS)

    @property
    @override
    def done(self) -> bool:
        if self._restarting or self.trainer.should_stop or self.max_steps != -1:
            return super().done
        return self._num_ready_batches_reached()

    @override
    def advance(self, data_fetcher: _DataFetcher) -> None:
        if self._restarting or not self._is_lean or not torch.is_grad_enabled():
            super().advance(data_fetcher)
            return
        trainer, progress, results = self.trainer, self.batch_progress, self._results
        self.val_loop._restarting = False
        if trainer.world_size > 1:
            self._broadcast_sigterm_tensor()
        batch_idx = progress.current.ready
        batch, _, _ = next(data_fetcher)
        progress.is_last_batch = data_fetcher.done
        hooks, connector = self._hooks, trainer._logger_connector
        if not self._runs_own_steps:
            batch = trainer.precision_plugin.convert_input(batch)
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        progress.increment_ready()
        connector._first_loop_iter = connector._first_loop_iter is None
        results.batch, results.batch_size, results.dataloader_idx = batch, None, None
        hooks.of_callbacks("on_train_batch_start", batch, batch_idx)
        hooks.of_strategy("on_train_batch_start", batch, batch_idx)
        progress.increment_started()
        if self._runs_own_steps:
            output = self._optimize(batch, batch_idx)
        else:
            kwargs = OrderedDict(batch=batch, batch_idx=batch_idx)
            output = self.automatic_optimization.run(trainer.optimizers[0], batch_idx, kwargs)
        progress.increment_processed()
        self.update_lr_schedulers("step", update_plateau_schedulers=False)
        if self._num_ready_batches_reached():
            self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        hooks.of_callbacks("on_train_batch_end", output, batch, batch_idx)
        hooks.of_module("on_train_batch_end", output, batch, batch_idx)
        if results:
            connector.on_batch_end()
        results.batch = results.batch_size = None
        progress.increment_completed()
        if results:
            connector.update_train_step_metrics()

    @override
    def on_advance_end(self, data_fetcher: _DataFetcher) -> None:
        if not self._is_lean or self.trainer.should_stop or self.trainer.received_sigterm:
            super().on_advance_end(data_fetcher)
        elif not self._should_accumulate():
            self._batches_that_stepped += 1

    @override
    def _update_learning_rates(self, interval: str, update_plateau_schedulers: bool) -> None:
        if not self._is_lean:
            super()._update_learning_rates(interval, update_plateau_schedulers)
            return
        for config in () if update_plateau_schedulers else self.trainer.lr_scheduler_configs:
            index = self.batch_idx if interval == "step" else self.trainer.current_epoch
            if config.interval == interval and (index + 1) % config.frequency == 0:
                self.scheduler_progress.increment_ready()
                self._hooks.of_module("lr_scheduler_step", config.scheduler, None)
                self.scheduler_progress.increment_completed()

    @override
    def _should_accumulate(self) -> bool:
        # Asked three times a batch; one that closes its window steps, whatever else the base class looks at.
        within_window = self.batch_progress.current.ready % self.trainer.accumulate_grad_batches != 0
        return within_window and super()._should_accumulate()

    def _optimize(self, batch: "Batch", batch_idx: int) -> dict[str, Any]:
        """Run forward and backward, and the optimizer's step at the end of a window; return what the step returned."""
        trainer, module, hooks = self.trainer, self._hooks.module, self._hooks
        optimization, progress = self.automatic_optimization, self.automatic_optimization.optim_progress.optimizer
        result: ClosureResult | None = None

        def closure() -> torch.Tensor | None:
            nonlocal result
            output = hooks.of_module("training_step", batch, batch_idx)
            result = optimization.output_result_cls.from_training_step_output(output, trainer.accumulate_grad_batches)
            if optimization._skip_backward:
                return result.loss
            if batch_idx % trainer.accumulate_grad_batches == 0:
                optimizer = trainer.optimizers[0]
                progress.zero_grad.increment_ready()
                hooks.call("on_before_zero_grad", optimizer)
                progress.zero_grad.increment_started()
                hooks.of_module("optimizer_zero_grad", trainer.current_epoch, batch_idx, optimizer)
                progress.zero_grad.increment_completed()
            assert result.closure_loss is not None, "a training step of this package returns its loss"
            hooks.call("on_before_backward", result.closure_loss)
            module.backward(result.closure_loss)
            hooks.call("on_after_backward")
            return result.loss

        if self._should_accumulate():
            closure()
        else:
            progress.step.increment_ready()
            optimizer = trainer.strategy._lightning_optimizers[0]
            hooks.of_module("optimizer_step", trainer.current_epoch, batch_idx, optimizer, closure)
            progress.step.increment_completed()
        assert result is not None, "the closure has run"
        return result.asdict()

    def step_optimizer(self, optimizer: Any, closure: Callable[[], Any]) -> Any:
        """Run ``closure``, the hooks after it and the step of ``optimizer``, as the strategy would."""
        trainer = self.trainer
        if not (self._is_lean and self._runs_own_steps):
            return trainer.strategy.optimizer_step(optimizer, closure, self._hooks.module)
        result = closure()
        self._hooks.call("on_before_optimizer_step", optimizer)
        self._hooks.of_module(
            "configure_gradient_clipping",
            optimizer,
            gradient_clip_val=trainer.gradient_clip_val,
            gradient_clip_algorithm=trainer.gradient_clip_algorithm,
        )
        optimizer.step()
        return result


class LeanEvaluationLoop(_EvaluationLoop):
    """Lightning's loop over the batches of an evaluation, lean as :class:`LeanEpochLoop` is. Public: none."""

    _verified_hooks: Sequence[Any] = ()

    @override
    def reset(self) -> None:
        super().reset()
        self._hooks = _DefinedHooks(self.trainer)
        self._runs_own_steps = _is_plain(self.trainer.strategy, _EVALUATION_STEPS)
        fetcher = self._data_fetcher
        assert fetcher is not None, "made by the method of the base class"
        self._is_lean = (
            not isinstance(fetcher, _DataLoaderIterDataFetcher)
            and self.num_dataloaders == 1
            and not self.trainer.sanity_checking
        )
        self._stage_name = "test" if self.trainer.testing else "validation"
        if self._is_lean:
            fetcher._start_profiler = fetcher._stop_profiler = _do_nothing

    @override
    def _verify_dataloader_idx_requirement(self) -> None:
        # By the signatures of three hooks, before the first batch and after the last.
        module = self.trainer.lightning_module
        hooks = [self.num_dataloaders, *(getattr(getattr(module, name), "__func__", None) for name in _INDEXED_HOOKS)]
        if hooks != self._verified_hooks or None in hooks:
            super()._verify_dataloader_idx_requirement()
            self._verified_hooks = hooks

    @override
    def _evaluation_step(
        self, batch: "Batch", batch_idx: int, dataloader_idx: int, dataloader_iter: Iterator[Any] | None
    ) -> None:
        trainer, progress, results = self.trainer, self.batch_progress, self._results
        if not self._is_lean:
            super()._evaluation_step(batch, batch_idx, dataloader_idx, dataloader_iter)
            return
        hooks, connector, stage = self._hooks, trainer._logger_connector, self._stage_name
        if not self._runs_own_steps:
            batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch), dataloader_idx=0)
        progress.increment_ready()
        connector._first_loop_iter = connector._first_loop_iter is None
        results.batch, results.batch_size, results.dataloader_idx = batch, None, None
        hooks.call(f"on_{stage}_batch_start", batch, batch_idx)
        progress.increment_started()
        step = hooks.of_module if self._runs_own_steps else hooks.of_strategy
        output = step(f"{stage}_step", batch, batch_idx)
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
        if not progress.is_last_batch and trainer.received_sigterm:
            raise SIGTERMException


_INDEXED_HOOKS = [
    f"{on}{stage}_{place}"
    for stage in ("validation", "test")
    for on, place in (("", "step"), ("on_", "batch_start"), ("on_", "batch_end"))
]

# Only a strategy that defines none of these, in full precision, leaves the steps to the loops above.
_TRAINING_STEPS = (
    *("batch_to_device", "training_step", "post_training_step", "pre_backward", "backward", "post_backward"),
    *("optimizer_step", "handles_gradient_accumulation", "block_backward_sync"),
)
_EVALUATION_STEPS = ("batch_to_device", "validation_step", "test_step")


def _is_plain(strategy: Strategy, steps: tuple[str, ...]) -> bool:
    plain = type(strategy.precision_plugin) is Precision
    return plain and not any(_defines(name, strategy, Strategy) for name in steps)


def _defines(name: str, owner: object, base: type) -> bool:
    """Return whether ``owner``, or its class, replaces the attribute ``name`` of ``base``."""
    return name in vars(owner) or getattr(type(owner), name, None) is not getattr(base, name, None)


class _DefinedHooks:
    """Calls the hooks that somebody defines, under their name; those of Lightning's base classes do nothing."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer: Any = trainer
        self.module = trainer.lightning_module

    def call(self, name: str, *args: Any) -> None:
        """Call the hook of the callbacks, then that of the module."""
        self.of_callbacks(name, *args)
        self.of_module(name, *args)

    def of_callbacks(self, name: str, *args: Any) -> None:
        """Call the hook of each callback."""
        nothing, state = getattr(pl.Callback, name), self.module.__dict__
        outer, state["_current_fx_name"] = state["_current_fx_name"], name
        for callback in self.trainer.callbacks:
            hook = getattr(callback, name)
            if getattr(hook, "__func__", hook) is not nothing:
                hook(self.trainer, self.module, *args)
        state["_current_fx_name"] = outer

    def of_module(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the hook of the module, and return what it returned."""
        return self._call_one(self.module, name, pl.LightningModule, args, kwargs)

    def of_strategy(self, name: str, *args: Any) -> Any:
        """Call the hook of the strategy, and return what it returned."""
        return self._call_one(self.trainer.strategy, name, object, args, {})

    def _call_one(self, owner: object, name: str, base: type, args: Any, kwargs: Any) -> Any:
        hook = getattr(owner, name)
        if getattr(hook, "__func__", hook) is getattr(base, name, None):
            return None
        state = self.module.__dict__
        outer, state["_current_fx_name"] = state["_current_fx_name"], name
        output = hook(*args, **kwargs)
        state["_current_fx_name"] = outer
        return output


def _do_nothing() -> None:
    pass


def step_optimizer(trainer: pl.Trainer, optimizer: Any, closure: Callable[[], Any]) -> None:
    """Run ``closure`` and the step of ``optimizer`` through the strategy, or as it would. Public: none needed."""
    loop = trainer.fit_loop.epoch_loop
    if isinstance(loop, LeanEpochLoop):
        loop.step_optimizer(optimizer, closure)
    else:
        trainer.strategy.optimizer_step(optimizer, closure, trainer.lightning_module)


def use_lean_loops(trainer: pl.Trainer) -> None:
    """Let the lean loops run the batches of ``trainer``, and keep the handlers of no other signals than it sets.

    Public: none.
    """
    if USES_SHORTCUTS:
        signals = {signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)}
        requeue = getattr(trainer._accelerator_connector.cluster_environment, "requeue_signal", None)
        kept = signals if requeue is None else signals | {requeue}
        trainer._signal_connector._get_current_signal_handlers = lambda: {one: signal.getsignal(one) for one in kept}  # type: ignore[method-assign]
    if USES_SHORTCUTS and isinstance(trainer.profiler, NullProfiler):  # type: ignore[attr-defined]  # set by a connector
        loop = trainer.fit_loop
        loop.epoch_loop = LeanEpochLoop(trainer, loop.min_steps, loop.max_steps)
        trainer.validate_loop = LeanEvaluationLoop(
            trainer, TrainerFn.VALIDATING, RunningStage.VALIDATING, inference_mode=False
        )
        trainer.test_loop = LeanEvaluationLoop(trainer, TrainerFn.TESTING, RunningStage.TESTING, inference_mode=False)


# ---- 3. Signals, messages and published metrics ----


_NOT_IN_PROGRESS_BARS = ("epoch", "step", "_runtime", "_per_second", "_flos")


def publish_metrics(trainer: pl.Trainer, metrics: Mapping[str, Any]) -> None:
    """Make the numbers of ``metrics`` visible to callbacks: to monitors, and to progress bars but for speeds.

    Public: ``LightningModule.log``, which costs 345 microseconds a call (measured) and is refused in some hooks.
    """
    numbers = {key: torch.tensor(float(value)) for key, value in metrics.items() if isinstance(value, int | float)}
    trainer._logger_connector._callback_metrics.update(numbers)
    shown = {key: float(metrics[key]) for key in numbers if not key.endswith(_NOT_IN_PROGRESS_BARS)}
    trainer._logger_connector._progress_bar_metrics.update(shown)


def disable_sigterm_handler(trainer: pl.Trainer) -> None:
    """Disable Lightning's SIGTERM handler, so that the user's can save a checkpoint. Public: none."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]


_SECONDS_TO_NEXT_BATCH = 20.0


def stop_between_batches(trainer: pl.Trainer, on_sigterm: Callable[[], object]) -> None:
    """Make a process that receives SIGTERM leave the loop of ``trainer`` before its next batch, without a broadcast.

    Lightning broadcasts the signal before every batch (0.5 to 0.8 ms a step with gloo) and once more inside the
    handler, where it would interleave with the collectives in flight. The other processes end anyway, when the
    collective they wait for fails. ``on_sigterm`` is called when the signal arrives. One of several processes that
    hangs, and so does not come to its next batch, is ended after the time that collectives have, at most twenty
    seconds: torchrun gives it thirty, and a long step or checkpoint may still complete. Public: none.
    """
    connector = trainer._signal_connector

    def note(signum: int, frame: object) -> None:
        on_sigterm()
        connector.received_sigterm = True
        if trainer.world_size > 1:
            seconds = min(_SECONDS_TO_NEXT_BATCH, process_group_timeout(trainer.strategy).total_seconds())
            deadline = threading.Timer(seconds, end_if_running)
            deadline.daemon = True
            deadline.start()

    def end_if_running() -> None:
        if trainer.state.status is TrainerStatus.RUNNING:
            os._exit(128 + signal.SIGTERM)

    def leave_if_received() -> None:
        if connector.received_sigterm:
            raise SIGTERMException

    connector._sigterm_notifier_fn = note  # type: ignore[method-assign, assignment]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = leave_if_received  # type: ignore[method-assign]


@contextmanager
def exit_on_sigterm(trainer: pl.Trainer) -> Iterator[None]:
    """Exit with the code of SIGTERM if it arrived while a loop of ``trainer`` ran.

    Lightning only notes the signal, checks for it between two batches (not after the last one) and then exits with
    code 0, so a scheduler would take the run for finished. Public: none.
    """
    try:
        yield
    except SIGTERMException as exit_:
        raise SystemExit(128 + signal.SIGTERM) from exit_
    if trainer.received_sigterm:
        raise SystemExit(128 + signal.SIGTERM)


_ANNOUNCERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.rank_zero",
    "lightning.fabric.utilities.distributed",
)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's messages about devices, tips and stop reasons, and warnings that do not apply here.

    Models come in evaluation mode from ``from_pretrained``; the trainer switches them at each step, so Lightning's
    warning about modules in evaluation mode would be wrong. Lightning 2.6 itself uses a name that torch deprecates.
    Its tip to use TF32 reads a setting of torch that raises once ``tf32=True`` has switched it on by the newer one.
    Public: ``Trainer(barebones=True)``, which also turns off loggers and callbacks.
    """

    def warns(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    loggers = [logging.getLogger(name) for name in _ANNOUNCERS]
    tip = cuda._check_cuda_matmul_precision  # type: ignore[attr-defined]  # imported there
    cuda._check_cuda_matmul_precision = lambda device: None  # type: ignore[attr-defined, assignment]
    for logger in loggers:
        logger.addFilter(warns)  # a level would clear the caches of all loggers, a sixth of the start of an evaluation
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            # `use_cpu=True` where there is a GPU is a choice.
            warnings.filterwarnings("ignore", message="GPU available but not used")
            # A run shorter than `logging_steps` is an ordinary run.
            warnings.filterwarnings("ignore", message=r"The number of training batches \(\d+\) is smaller")
            yield
    finally:
        cuda._check_cuda_matmul_precision = tip  # type: ignore[attr-defined]
        for logger in loggers:
            logger.removeFilter(warns)
