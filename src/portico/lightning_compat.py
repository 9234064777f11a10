"""Every private name of Lightning that portico uses, in one place (read against Lightning 2.6.6).

A new Lightning release is judged by this file and its tests. Each docstring says why the name is needed and, after
"Public:", which documented API would replace it.
"""

import logging
import os
import signal
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.loops.progress import _BatchProgress
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

if TYPE_CHECKING:
    from portico.annotations import Batch
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


# ---- 2. Shortcuts that only save time (PORTICO_LIGHTNING_SHORTCUTS=0 turns them off) ----
# CPU microseconds of a training step that each saves, of 990 with lightning.Trainer (measured on a tiny model):
# the hook name of FastModule 63, skip_step_signature 31, NullProfiler 12.


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


def skip_step_signature(trainer: pl.Trainer) -> None:
    """Skip Lightning's inspection of the signature of ``training_step`` at every batch. Public: none."""

    def step_arguments(kwargs: object, batch: "Batch", batch_idx: int) -> OrderedDict[str, Any]:
        return OrderedDict(batch=batch, batch_idx=batch_idx)

    if USES_SHORTCUTS:
        trainer.fit_loop.epoch_loop._build_kwargs = step_arguments  # type: ignore[method-assign]


# ---- 3. Signals, messages and published metrics ----


def publish_metrics(trainer: pl.Trainer, metrics: Mapping[str, Any]) -> None:
    """Make the numbers of ``metrics`` visible to monitoring callbacks (``EarlyStopping``, ``ModelCheckpoint``).

    Public: ``LightningModule.log``, which costs 345 microseconds a call (measured) and is refused in some hooks.
    """
    numbers = {key: torch.tensor(float(value)) for key, value in metrics.items() if isinstance(value, int | float)}
    trainer._logger_connector._callback_metrics.update(numbers)


def disable_sigterm_handler(trainer: pl.Trainer) -> None:
    """Disable Lightning's SIGTERM handler, so that the user's can save a checkpoint. Public: none."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]


def stop_between_batches(trainer: pl.Trainer, on_sigterm: Callable[[], None]) -> None:
    """Make a process that receives SIGTERM leave the loop of ``trainer`` before its next batch, without a broadcast.

    Lightning broadcasts the signal before every batch (0.5 to 0.8 ms a step with gloo) and once more inside the
    handler, where it would interleave with the collectives in flight. The other processes end anyway, when the
    collective they wait for fails. ``on_sigterm`` is called when the signal arrives. Public: none.
    """
    connector = trainer._signal_connector

    def note(signum: int, frame: object) -> None:
        on_sigterm()
        connector.received_sigterm = True

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
    Public: ``Trainer(barebones=True)``, which also turns off loggers and callbacks.
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
