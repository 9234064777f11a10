"""The private names of Lightning that portico imports, in one place (read against Lightning 2.6.6).

:mod:`portico.loop.lean` and :mod:`portico.distributed.signals` replace private methods of its loops and connectors.

A new Lightning release is judged by the three files and their tests. Each docstring says why the name is needed and,
after "Public:", which documented API would replace it.
"""

import logging
import os
import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from typing import Any
from weakref import WeakKeyDictionary

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import cuda
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fetchers import _DataFetcher, _DataLoaderIterDataFetcher, _PrefetchDataFetcher
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.loops.progress import _BatchProgress
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource, _resolve_overfit_batches
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.tuner.lr_finder import _LRFinder
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.exceptions import _TunerExitException
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from portico.compat.transformers import logger

CHECKED_VERSION = "2.6"
USES_SHORTCUTS = os.environ.get("PORTICO_LIGHTNING_SHORTCUTS") != "0"

# The loops that :mod:`portico.loop.lean` derives from, and what feeds them. Public: none.
EpochLoop = _TrainingEpochLoop
EvaluationLoop = _EvaluationLoop
DataFetcher = _DataFetcher
DataLoaderIterDataFetcher = _DataLoaderIterDataFetcher


class EndOfFit(_TunerExitException):
    """Raised in a hook, it ends ``fit`` without an error. Public: ``trainer.should_stop``: a batch runs first."""


# ---- 1. Needed for correct numbers ----

# Losses and gradients


class LearningRateResults(_LRFinder):
    """Points of a search for a learning rate, which suggest a rate and draw a plot.

    Public: none; ``Tuner.lr_find`` returns one, but runs the search itself.
    """


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


def keep_loss_scale(pl_trainer: pl.Trainer) -> None:
    """Make ``pl_trainer`` use :class:`UnnormalizedLoss`. Public: none."""
    pl_trainer.fit_loop.epoch_loop.automatic_optimization.output_result_cls = UnnormalizedLoss


@contextmanager
def unscaled_losses(pl_trainer: pl.Trainer) -> Iterator[None]:
    """Make ``pl_trainer``, which belongs to the user, use :class:`UnnormalizedLoss` during the block. Public: none."""
    with _restored([(pl_trainer.fit_loop.epoch_loop.automatic_optimization, "output_result_cls")]):
        keep_loss_scale(pl_trainer)
        yield


def skip_lightning_backward(pl_trainer: pl.Trainer, skip: bool) -> None:
    """Tell ``pl_trainer`` not to run backward, because an overridden training step does.

    Public: ``automatic_optimization = False``, which also turns off accumulation, clipping and scheduler steps.
    """
    pl_trainer.fit_loop._skip_backward = skip


def run_closure(
    precision: Precision, model: pl.LightningModule, optimizer: Optimizer, closure: Callable[[], Any]
) -> Any:
    """Run the closure of a step and the hooks after it, without ``optimizer.step``, which the device runs itself.

    Public: none; ``Precision.optimizer_step`` always steps.
    """
    return precision._wrap_closure(model, optimizer, closure)


class SteeringError(RuntimeError):
    """A step, a hook or a callback raised ``original``, by which Lightning would end a loop without an error."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(f"{type(original).__name__} was raised in a step, a hook or a callback.")
        self.original = original


def end_loops_with_the_data(pl_trainer: pl.Trainer) -> Callable[[], None]:
    """Make ``pl_trainer`` end its loops only with their batches; return a function that undoes it.

    Lightning ends an epoch or an evaluation, without an error, when any code in it raises ``StopIteration``: a model,
    a loss or a metric that reads an exhausted iterator is enough. Here ``SteeringError`` is raised. Public: none.
    """
    fit_loop = pl_trainer.fit_loop
    evaluations = (fit_loop.epoch_loop.val_loop, pl_trainer.validate_loop, pl_trainer.test_loop)
    guarded: list[tuple[Any, tuple[str, ...]]] = [
        (fit_loop, ("on_run_start", "on_advance_start", "advance", "on_advance_end", "on_run_end")),
        (fit_loop.epoch_loop, ("advance", "on_advance_end")),
        *(
            (loop, ("on_run_start", "_evaluation_step", "_store_dataloader_outputs", "on_run_end"))
            for loop in evaluations
        ),
        (pl_trainer.predict_loop, ("_predict_step",)),
    ]
    for loop, names in guarded:
        for name in names:
            setattr(loop, name, _forbid_steering(getattr(loop, name)))

    def undo() -> None:
        for loop, names in guarded:
            for name in names:
                delattr(loop, name)

    return undo


def _forbid_steering(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def run(*args: Any) -> Any:
        try:
            return method(*args)
        except StopIteration as error:
            if _ends_epoch(error):
                raise
            raise SteeringError(error) from error
        except _TunerExitException as error:
            if isinstance(error, EndOfFit):
                raise
            raise SteeringError(error) from error

    return run


_FETCHES = {kind.__next__.__code__ for kind in (_DataFetcher, _PrefetchDataFetcher, _DataLoaderIterDataFetcher)}


def _ends_epoch(error: StopIteration) -> bool:
    """Return whether there was no batch to fetch, or ``on_train_batch_start`` has returned -1."""
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    return not _FETCHES.isdisjoint(codes) or codes[-1] is _TrainingEpochLoop.advance.__code__


def was_skipped(pl_trainer: pl.Trainer) -> bool:
    """Return whether a fit of ``pl_trainer`` had nothing to run. Public: none."""
    return pl_trainer.fit_loop.skip


@contextmanager
def keep_optimizers_on_device(strategy: Strategy) -> Iterator[None]:
    """Keep ``Strategy.teardown`` from moving the states of optimizers to the CPU inside the block. Public: none."""
    plain_teardown, replaced = strategy.teardown, strategy.__dict__.get("teardown")

    def teardown() -> None:
        optimizers, strategy._optimizers = strategy._optimizers, []
        try:
            plain_teardown()
        finally:
            strategy._optimizers = optimizers

    strategy.__dict__["teardown"] = teardown
    try:
        yield
    finally:
        del strategy.__dict__["teardown"]
        if replaced is not None:
            strategy.__dict__["teardown"] = replaced


# Averages of weights


class _WeightExchange:
    """The hooks of a ``WeightAveraging`` callback that exchange weights and average, which can be nested."""

    def __init__(self, callback: WeightAveraging) -> None:
        self.depth = 0
        self._begin, self._end = callback.on_validation_epoch_start, callback.on_validation_epoch_end

    def begin(self, pl_trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.depth += 1
        if self.depth == 1:
            self._begin(pl_trainer, module)

    def end(self, pl_trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.depth -= 1
        if self.depth == 0:
            self._end(pl_trainer, module)


_EXCHANGES: WeakKeyDictionary[WeightAveraging, _WeightExchange] = (
    WeakKeyDictionary()
)  # of the callbacks of a running fit


@contextmanager
def averaging(pl_trainer: pl.Trainer) -> Iterator[None]:
    """Run a fit inside the block, so that evaluations, predictions and checkpoints agree on averages of weights.

    By itself an evaluation inside another would exchange model and average back, and an evaluation after the fit would
    put the last average into the model, whatever was loaded since. Counts of an earlier fit are reset. Public: none.
    """
    callbacks = [callback for callback in pl_trainer.callbacks if isinstance(callback, WeightAveraging)]  # type: ignore[attr-defined]
    for callback in callbacks:
        callback.load_state_dict({"latest_update_step": 0})
        callback._latest_update_epoch = -1
        exchange = _EXCHANGES[callback] = _WeightExchange(callback)
        hooks = {"on_validation_epoch_start": exchange.begin, "on_validation_epoch_end": exchange.end}
        callback.__dict__.update(hooks)
    try:
        yield
    finally:
        for callback in callbacks:
            exchange = _EXCHANGES.pop(callback)
            while exchange.depth:
                exchange.end(pl_trainer, pl_trainer.lightning_module)
            del callback.__dict__["on_validation_epoch_start"], callback.__dict__["on_validation_epoch_end"]
            callback._average_model = None


@contextmanager
def averaged_weights(pl_trainer: pl.Trainer) -> Iterator[None]:
    """Inside the block the model has the average of its weights, if a callback of the running fit keeps one."""
    callbacks: list[Callback] = pl_trainer.callbacks  # type: ignore[attr-defined]
    exchanges = [
        _EXCHANGES[callback]
        for callback in callbacks
        if isinstance(callback, WeightAveraging) and callback in _EXCHANGES
    ]
    before = [exchange.depth for exchange in exchanges]
    for exchange in exchanges:
        exchange.begin(pl_trainer, pl_trainer.lightning_module)
    try:
        yield
    finally:
        for exchange, depth in zip(exchanges, before, strict=True):
            while exchange.depth > depth:  # an evaluation that failed did not end
                exchange.end(pl_trainer, pl_trainer.lightning_module)


# Progress of the loops


def continue_from(
    pl_trainer: pl.Trainer, *, epoch: int, num_batches_done: int, batches_per_epoch: int, steps: int
) -> None:
    """Set the progress of the loops of ``pl_trainer`` for a resumed run, in the form of Lightning's checkpoints.

    The run continues in ``epoch`` (from 0), after ``num_batches_done`` of its batches and ``steps`` optimizer steps.
    Public: ``fit(ckpt_path=...)``, which needs a Lightning checkpoint and replays batches of an open epoch (measured).
    """
    names = ("ready", "started", "processed", "completed")
    loop = pl_trainer.fit_loop
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


class _ResumesWhenTold(_CheckpointConnector):
    @property
    @override
    def _hpc_resume_path(self) -> str | None:
        file = super()._hpc_resume_path
        if file is not None:
            logger.warning("%s is not read; to continue a run, set `resume_from_checkpoint=True`.", file)
        return None


def resume_when_told(pl_trainer: pl.Trainer) -> None:
    """Keep Lightning, in a job of SLURM, from writing and loading ``hpc_ckpt_N.ckpt`` in the folder of the run.

    Lightning does not bound the memory for the file, and the run would end after another number of steps (measured).
    Public: none.
    """
    pl_trainer._checkpoint_connector = _ResumesWhenTold(pl_trainer)
    requeue = pl_trainer._signal_connector._slurm_sigusr_handler_fn

    def requeue_only(signum: Any, frame: Any) -> None:
        logger.warning(
            "Signal %d: SLURM is asked to start this job again. It then resumes from the last `checkpoint-N`, if it "
            "sets `resume_from_checkpoint`; nothing else is saved now.",
            signum,
        )
        with _restored([(pl_trainer, "save_checkpoint")]):
            pl_trainer.save_checkpoint = lambda *_: None  # type: ignore[method-assign]
            requeue(signum, frame)

    pl_trainer._signal_connector._slurm_sigusr_handler_fn = requeue_only  # type: ignore[assignment, method-assign]


def end_epoch_after(pl_trainer: pl.Trainer, num_batches: int) -> None:
    """End the current epoch of ``pl_trainer`` after ``num_batches``, fewer than it expected.

    A feed without a length would make Lightning fetch a batch ahead. Public: none.
    """
    fetcher = pl_trainer.fit_loop._data_fetcher
    assert fetcher is not None, "an epoch is running"
    fetcher.length = num_batches


def is_restarted_mid_epoch(pl_trainer: pl.Trainer) -> bool:
    """Return whether ``pl_trainer`` continues inside an epoch: ``on_train_epoch_start`` is skipped. Public: none."""
    return bool(pl_trainer.fit_loop.restarted_mid_epoch)


def get_user_train_loader(pl_trainer: pl.Trainer) -> Any:
    """Return the user's loader passed to ``pl_trainer.fit``, directly or in a data module; ``None`` for portico's.

    Public: ``trainer.train_dataloader``, which exists only after the hooks that need it.
    """
    source = pl_trainer.fit_loop._data_source
    return None if _is_ours(source) else source.dataloader()


def validates_own_data(pl_trainer: pl.Trainer) -> bool:
    """Return whether the fit of ``pl_trainer`` validates on data of portico's module or data module. Public: none."""
    return _is_ours(pl_trainer.fit_loop.epoch_loop.val_loop._data_source)


def _is_ours(source: _DataLoaderSource) -> bool:
    return source.instance is None or type(source.instance).__module__.startswith("portico.")


def use_train_loader(pl_trainer: pl.Trainer, loader: Any) -> None:
    """Make the fit of ``pl_trainer`` read ``loader``. Public: none from a hook."""
    pl_trainer.fit_loop._data_source = _DataLoaderSource(loader, "train_dataloader")


def is_fast_dev_run(pl_trainer: pl.Trainer) -> bool:
    """Return whether ``pl_trainer`` tries out a few batches. Public: none; ``fast_dev_run`` is undocumented."""
    return bool(pl_trainer.fast_dev_run)  # type: ignore[attr-defined]


def overfits(pl_trainer: pl.Trainer) -> bool:
    """Return whether ``pl_trainer`` repeats the same batches (``overfit_batches``). Public: none."""
    return bool(pl_trainer.overfit_batches > 0)  # type: ignore[attr-defined]


def disable_shuffling(loader: Any) -> Any:
    """Return ``loader`` in the order of its data, with Lightning's warning if it shuffles them. Public: none."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    combined = CombinedLoader(loader, "sequential")
    _resolve_overfit_batches(combined, RunningStage.TRAINING)
    return combined.flattened[0]


# Evaluations inside a fit


def can_nest_evaluation(pl_trainer: pl.Trainer) -> bool:
    """Return whether the fit of ``pl_trainer`` has set up its data, so that loops can be nested. Public: none."""
    return pl_trainer.fit_loop._data_fetcher is not None


def run_nested_evaluation(pl_trainer: pl.Trainer, feed: Iterable[object], *, predicts: bool) -> None:
    """Run an evaluation inside another loop of ``pl_trainer``: at any point of a fit, or of another evaluation.

    A prediction runs as a test in Lightning, so callbacks that wait for a validation (``EarlyStopping``,
    ``ModelCheckpoint``) ignore it. Public: none; ``Trainer.validate`` sets up and tears down a run.
    """
    state, connector = pl_trainer.state, pl_trainer._logger_connector
    outer = [(state, "fn"), (state, "stage"), (connector, "_first_loop_iter"), (connector, "_current_fx")]
    with _restored([*outer, (pl_trainer.lightning_module, "_current_fx_name")]):
        if predicts:
            state.fn, pl_trainer.testing = TrainerFn.TESTING, True
        else:
            state.fn = TrainerFn.FITTING if state.fn is TrainerFn.FITTING else TrainerFn.VALIDATING
            pl_trainer.validating = True
        loop = pl_trainer._evaluation_loop
        # The loop may be running already, in an enclosing evaluation.
        with _restored([(loop, name) for name in vars(loop)]):
            loop._data_source = _DataLoaderSource(feed, f"{loop._stage.dataloader_prefix}_dataloader")
            loop._combined_loader = None
            loop.restarting = loop.verbose = False
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
    """Return the batch sampler inside the wrapper that Lightning adds for a prediction. Public: none."""
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


# ---- 2. Messages and published metrics ----


_NOT_IN_PROGRESS_BARS = ("epoch", "step", "_runtime", "_per_second", "_preparation_time", "_flos")


def publish_metrics(pl_trainer: pl.Trainer, metrics: Mapping[str, Any]) -> None:
    """Make the numbers of ``metrics`` visible to callbacks: to monitors and, except speeds, to progress bars.

    Public: ``LightningModule.log``, which costs 345 microseconds a call (measured) and is refused in some hooks.
    """
    connector = pl_trainer._logger_connector
    for key, value in metrics.items():
        # Its own epoch, which counts from 0, names the files of a `ModelCheckpoint`.
        if isinstance(value, int | float) and key != "epoch":
            connector._callback_metrics[key] = torch.tensor(float(value))
            if not key.endswith(_NOT_IN_PROGRESS_BARS):
                connector._progress_bar_metrics[key] = float(value)


_ANNOUNCERS = [
    logging.getLogger("lightning.pytorch.utilities.rank_zero"),
    logging.getLogger("lightning.fabric.utilities.rank_zero"),
    logging.getLogger("lightning.fabric.utilities.distributed"),
]


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's messages about devices, tips and limits, and warnings that do not apply here.

    What callbacks say is shown: that a time limit has ended the run, or what ``verbose=True`` asks for.

    Models come in evaluation mode from ``from_pretrained``; the trainer switches them at each step, so Lightning's
    warning about modules in evaluation mode would be wrong. Lightning 2.6 uses a name that torch has deprecated. Its
    tip to use TF32 reads an older setting of torch, which raises once ``tf32=True`` has used the newer setting.
    Public: ``Trainer(barebones=True)``, which also turns off loggers and callbacks.
    """

    def warns(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or Path(record.pathname).parent.name == "callbacks"

    tip = cuda._check_cuda_matmul_precision  # type: ignore[attr-defined]  # imported there
    cuda._check_cuda_matmul_precision = lambda device: None  # type: ignore[attr-defined, assignment]
    for announcer in _ANNOUNCERS:
        # A level would clear the caches of all loggers, a sixth of the start of an evaluation.
        announcer.addFilter(warns)
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
        for announcer in _ANNOUNCERS:
            announcer.removeFilter(warns)
