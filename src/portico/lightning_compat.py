"""Every private name of Lightning that portico uses, in one place (checked against Lightning 2.6.6).

A new Lightning release is judged by this file and its tests. First what is needed for correct numbers, then
shortcuts that only save time, then logging and signals.
"""

import logging
import signal
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.loops.progress import _BatchProgress
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

CHECKED_VERSION = "2.6"


class UnnormalizedLoss(ClosureResult):
    """A training step's result whose loss is not divided by ``accumulate_grad_batches``.

    Lightning always divides; the trainer has already divided by the real number of batches in the window, which is
    smaller at the end of an epoch.
    """

    @classmethod
    def from_training_step_output(cls, training_step_output: STEP_OUTPUT, normalize: int = 1) -> ClosureResult:
        """Wrap the loss that ``training_step`` returned."""
        if isinstance(training_step_output, torch.Tensor):
            return cls(training_step_output)
        return super().from_training_step_output(training_step_output, normalize=1)

    def _clone_loss(self) -> None:
        # Lightning copies the loss in case it is changed in place; nothing here does that.
        if self.closure_loss is not None:
            self.loss = self.closure_loss.detach()


def keep_loss_scale(trainer: pl.Trainer) -> None:
    """Keep the automatic optimization of ``trainer`` from dividing the loss that ``training_step`` returns."""
    trainer.fit_loop.epoch_loop.automatic_optimization.output_result_cls = UnnormalizedLoss


def disable_sigterm_handler(trainer: pl.Trainer) -> None:
    """Disable Lightning's SIGTERM handler, so that the user's can save a checkpoint."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]


def stop_between_batches(trainer: pl.Trainer, on_sigterm: Callable[[], None]) -> None:
    """Make a process that receives SIGTERM leave the loop of ``trainer`` before its next batch, without a broadcast.

    Lightning broadcasts the signal before every batch and once more inside the handler, where it would interleave
    with the collectives in flight. The other processes end anyway, when the collective they wait for fails.

    Args:
        trainer: Trainer whose fit has not begun.
        on_sigterm: Called when the signal comes.
    """
    connector = trainer._signal_connector

    def take_note(signum: int, frame: object) -> None:
        on_sigterm()
        connector.received_sigterm = True

    def leave_if_asked() -> None:
        if connector.received_sigterm:
            raise SIGTERMException

    connector._sigterm_notifier_fn = take_note  # type: ignore[method-assign, assignment]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = leave_if_asked  # type: ignore[method-assign]


def relaunches_script(strategy: "Strategy") -> bool:
    """Return whether ``strategy`` starts its processes by running the script again."""
    return isinstance(getattr(strategy, "launcher", None), _SubprocessScriptLauncher)


def launches_workers(strategy: "Strategy") -> bool:
    """Return whether ``strategy`` spawns or forks worker processes for each call."""
    return isinstance(getattr(strategy, "launcher", None), _MultiProcessingLauncher)


def forks_workers(strategy: "Strategy") -> bool:
    """Return whether ``strategy`` forks its workers."""
    launcher = strategy.launcher
    return isinstance(launcher, _MultiProcessingLauncher) and launcher._start_method == "fork"


def drop_launcher(strategy: "Strategy") -> None:
    """Make ``strategy``, in a worker, run the call in this process instead of launching workers."""
    strategy._launcher = None


def wrap_in_ddp(strategy: DDPStrategy, model: nn.Module) -> DistributedDataParallel:
    """Return ``model`` in the wrapper that ``strategy`` puts around a ``LightningModule``."""
    return strategy._setup_model(model)


def set_root_device(strategy: Strategy, device: torch.device) -> None:
    """Make ``strategy``, which runs in one process, run on ``device``."""
    strategy._root_device = device  # type: ignore[attr-defined]


def plain_batch_sampler(sampler: Any) -> Any:
    """Return the batch sampler inside the one that Lightning puts around it for a prediction."""
    return sampler._batch_sampler if isinstance(sampler, _IndexBatchSamplerWrapper) else sampler


def run_closure(precision: Precision, model: Any, optimizer: Any, closure: Callable[[], Any]) -> Any:
    """Run the closure of a step and the hooks after it, and return the result of the closure."""
    return precision._wrap_closure(model, optimizer, closure)


def without_autocast(strategy: "Strategy") -> AbstractContextManager[Any]:
    """Return a context that disables the autocast Lightning wraps around a whole step."""
    plugin = strategy.precision_plugin
    if isinstance(plugin, MixedPrecision):
        return torch.autocast(plugin.device, enabled=False)
    return nullcontext()


def skip_lightning_backward(trainer: pl.Trainer, skip: bool) -> None:
    """Tell ``trainer`` not to run backward, because the training step does."""
    trainer.fit_loop._skip_backward = skip


def continue_from(
    trainer: pl.Trainer, *, epoch: int, num_batches_done: int, batches_per_epoch: int, steps: int
) -> None:
    """Set the progress of the loops of ``trainer`` for a resumed run, in the form of Lightning's checkpoints.

    Args:
        trainer: Trainer whose fit has just been set up.
        epoch: Epoch to continue with, from 0.
        num_batches_done: Batches of that epoch that were trained on.
        batches_per_epoch: Batches in an epoch.
        steps: Optimizer steps that were made.
    """
    loop = trainer.fit_loop
    state = loop.state_dict()
    epochs = state["epoch_progress"]
    mid_epoch = num_batches_done > 0
    for counts in (epochs["total"], epochs["current"]):
        counts.update(ready=epoch + mid_epoch, started=epoch + mid_epoch, processed=epoch, completed=epoch)
    batches = state["epoch_loop.batch_progress"]
    batches["total"].update(_all_counts(epoch * min(batches_per_epoch, sys.maxsize) + num_batches_done))
    batches["current"].update(_all_counts(num_batches_done))
    optimizer_steps = state["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    optimizer_steps["total"].update(ready=steps, completed=steps)
    schedulers = state["epoch_loop.scheduler_progress"]
    schedulers["total"].update(ready=steps, completed=steps)
    state["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
    loop.load_state_dict(state)


def end_epoch_after(trainer: pl.Trainer, num_batches: int) -> None:
    """End the present epoch of ``trainer`` after ``num_batches``, fewer than it expected."""
    fetcher = trainer.fit_loop._data_fetcher
    assert fetcher is not None, "an epoch is running"
    fetcher.length = num_batches


def restarted_mid_epoch(trainer: pl.Trainer) -> bool:
    """Return whether ``trainer`` continues inside an epoch, where Lightning skips ``on_train_epoch_start``."""
    return bool(trainer.fit_loop.restarted_mid_epoch)


def has_data(trainer: pl.Trainer) -> bool:
    """Return whether the fit of ``trainer`` has set up its data, so that loops can be nested in it."""
    return trainer.fit_loop._data_fetcher is not None


def evaluate_inside(trainer: pl.Trainer, feed: Any, *, predicts: bool) -> None:
    """Run an evaluation inside another loop of ``trainer``: at any point of a fit, or of another evaluation.

    A prediction runs as Lightning's test does, so callbacks that wait for a validation (``EarlyStopping``,
    ``ModelCheckpoint``) do not count it as one.

    Args:
        trainer: A trainer whose loop is running.
        feed: Sized iterable of batches; not a ``DataLoader``, which Lightning would rebuild.
        predicts: Whether this is a prediction.
    """
    with _restored(trainer):
        if predicts:
            trainer.state.fn, trainer.testing = TrainerFn.TESTING, True
        else:
            trainer.state.fn = TrainerFn.FITTING if trainer.state.fn is TrainerFn.FITTING else TrainerFn.VALIDATING
            trainer.validating = True
        loop = trainer._evaluation_loop
        with _restarted(loop):
            loop._data_source = _DataLoaderSource(feed, f"{loop._stage.dataloader_prefix}_dataloader")
            loop.run()


def publish_metrics(trainer: pl.Trainer, metrics: Mapping[str, Any]) -> None:
    """Make the numbers of ``metrics`` visible to monitoring callbacks (``EarlyStopping``, ``ModelCheckpoint``)."""
    numbers = {key: torch.tensor(float(value)) for key, value in metrics.items() if isinstance(value, int | float)}
    trainer._logger_connector._callback_metrics.update(numbers)


@contextmanager
def keep_gradients(module: pl.LightningModule) -> Iterator[None]:
    """Keep Lightning from zeroing the gradients of ``module`` before an evaluation: user code may still need them."""
    module.__dict__["zero_grad"] = lambda set_to_none=True: None
    try:
        yield
    finally:
        del module.__dict__["zero_grad"]


@contextmanager
def _restored(trainer: pl.Trainer) -> Iterator[None]:
    """Restore the state of ``trainer`` after a nested loop."""
    module = trainer.lightning_module
    connector = trainer._logger_connector
    saved_state = (trainer.state.fn, trainer.state.stage)
    saved_connector = (connector._first_loop_iter, connector._current_fx)
    saved_fx = module._current_fx_name
    try:
        yield
    finally:
        trainer.state.fn, trainer.state.stage = saved_state
        connector._first_loop_iter, connector._current_fx = saved_connector
        module._current_fx_name = saved_fx


@contextmanager
def _restarted(loop: _EvaluationLoop) -> Iterator[None]:
    """Run ``loop`` from the start, although it may be running, and restore it afterwards."""
    saved = dict(vars(loop))
    loop._combined_loader, loop.restarting, loop.verbose = None, False, False
    loop.batch_progress = _BatchProgress()
    loop._results = _ResultCollection(training=False)
    try:
        yield
    finally:
        vars(loop).update(saved)


def _all_counts(value: int) -> dict[str, int]:
    return {"ready": value, "started": value, "processed": value, "completed": value}


class NullProfiler(Profiler):
    """A profiler that measures nothing, without the generator per hook of Lightning's ``PassThroughProfiler``."""

    _nothing: AbstractContextManager[None] = nullcontext()

    @override
    def start(self, action_name: str) -> None:
        """Do nothing."""

    @override
    def stop(self, action_name: str) -> None:
        """Do nothing."""

    @override
    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        """Return a shared, reentrant null context."""
        return self._nothing


class FastHookName:
    """Sets the name of the present hook without ``nn.Module.__setattr__``: Lightning does so twenty times a step."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)


class NoBatchTransfer:
    """Skips Lightning's transfer of batches: the loaders and ``_prepare_inputs`` move them."""

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        return batch

    def _apply_batch_transfer_handler(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        return batch


def skip_step_signature(trainer: pl.Trainer) -> None:
    """Skip Lightning's inspection of the signature of ``training_step`` at every batch."""

    def step_arguments(kwargs: Any, batch: Any, batch_idx: int) -> OrderedDict[str, Any]:
        return OrderedDict(batch=batch, batch_idx=batch_idx)

    trainer.fit_loop.epoch_loop._build_kwargs = step_arguments  # type: ignore[method-assign]


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
    """
    loggers = [logging.getLogger(name) for name in _ANNOUNCERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def exit_on_sigterm(trainer: pl.Trainer) -> Iterator[None]:
    """Exit with the code of SIGTERM if it arrived while a loop of ``trainer`` ran.

    Lightning only notes the signal, checks for it between two batches (not after the last one) and then exits with
    code 0, so a scheduler would take the run for finished.

    Raises:
        SystemExit: With the code of a termination.
    """
    try:
        yield
    except SIGTERMException as exit_:
        raise SystemExit(128 + signal.SIGTERM) from exit_
    if trainer.received_sigterm:
        raise SystemExit(128 + signal.SIGTERM)
