"""Callbacks.

:class:`LossSpike` reacts to the loss, :class:`LearningRateFinder` and :class:`BatchSizeFinder` search before a run,
:class:`ProfilerCallback` profiles steps.
"""

import csv
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.seed import isolate_rng
from torch.optim.lr_scheduler import LambdaLR
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState

from portico.checkpoint.manifest import newest_complete, reading
from portico.checkpoint.weights import load_weights
from portico.checkpoint.writer import OPTIMIZER_FILE
from portico.compat.lightning import EndOfFit, LearningRateResults
from portico.compat.transformers import ExportableState, HFTrainingArguments, has_length, logger
from portico.data.loaders import num_examples_in_round
from portico.distributed.model_parallel import full_tensor
from portico.distributed.placement import release_memory
from portico.errors import InputError
from portico.loop.model_setup import is_out_of_memory
from portico.loop.module import BackwardPass
from portico.trust.disk import open_new, replaced, write_text
from portico.trust.files import load_tensors
from portico.trust.names import data_only

if TYPE_CHECKING:
    from portico.loop.hooks import TrainerHooks

# ---- Spikes of the loss ----

_ACTIONS = ("report", "stop", "rollback")


def is_spike(loss: float, before: list[float], factor: float) -> bool:
    """Return whether a loss is not finite or above ``factor`` times the median of the losses before it."""
    return not math.isfinite(loss) or (bool(before) and loss > factor * median(before) > 0)


def find_spike(log_history: Iterable[Mapping[str, Any]], *, window: int = 10) -> tuple[int, float] | None:
    """Return step and loss of the worst spike: the first loss that is not finite, else the largest jump.

    The gradient norm of a step that is not finite counts too, since transformers leaves such losses out of its means.
    A jump is the ratio to the median of the ``window`` losses before it. None if no loss exceeds that median.
    """
    before: list[float] = []
    worst: tuple[float, int, float] | None = None
    for row in log_history:
        loss = row.get("loss")
        if loss is None:
            continue
        if not math.isfinite(loss) or not math.isfinite(row.get("grad_norm", 0.0)):
            return row["step"], loss
        if before and loss > median(before) > 0 and (worst is None or loss / median(before) > worst[0]):
            worst = loss / median(before), row["step"], loss
        before = [*before, loss][-window:]
    return None if worst is None else worst[1:]


@data_only
class LossSpike(TrainerCallback, ExportableState):
    """Reacts when a logged loss is not finite or far above those before it.

    A gradient norm that is not finite counts as a spike if it has reached the weights; it does not when a gradient
    scaler skips the step (fp16). Checkpoints store the spikes, so a resumed run knows them.

    Args:
        action: ``"report"`` warns, ``"stop"`` also ends the training, ``"rollback"`` restores weights and optimizer
            from the last checkpoint before the spike; data, learning rate and gradient scaler continue from the
            spike, so the batches before it are skipped.
        factor: A loss above this multiple of the median of the last losses is a spike.
        window: Number of logged losses in the median.
        max_rollbacks: Maximum number of rollbacks before training stops.

    Attributes:
        spikes: Step and loss of each spike, including spikes before the checkpoint that a run resumed from.

    Raises:
        InputError: If ``action`` is unknown.
    """

    def __init__(
        self, action: str = "report", *, factor: float = 3.0, window: int = 10, max_rollbacks: int = 3
    ) -> None:
        if action not in _ACTIONS:
            raise InputError(f"`action={action!r}` is unknown; set it to one of {', '.join(map(repr, _ACTIONS))}.")
        self.action = action
        self.factor = factor
        self.window = window
        self.max_rollbacks = max_rollbacks
        self.spikes: list[tuple[int, float]] = []
        self._before: list[float] = []
        self._last_good_step = 0

    def on_train_begin(
        self, args: HFTrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        callbacks: Any = state.stateful_callbacks  # by class name, as in a checkpoint
        stored = callbacks.get(type(self).__name__) if state.global_step else None
        # None for a run without this callback, or with several.
        known = dict(stored["attributes"]["spikes"]) if isinstance(stored, Mapping) else None
        self.spikes = []
        self._before = []
        self._last_good_step = 0
        for row in state.log_history:
            self._is_spike(int(row["step"]), row, known=known)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        names = ("action", "factor", "window", "max_rollbacks")
        return {"args": {name: getattr(self, name) for name in names}, "attributes": {"spikes": self.spikes}}

    def on_log(
        self,
        args: HFTrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **parts: Any,
    ) -> None:
        if not self._is_spike(state.global_step, logs or {}, model=parts.get("model")):
            return
        step, loss = self.spikes[-1]
        logger.warning(
            f"The loss is {loss:.4g} at step {step}, after a median of {median(self._before or [loss]):.4g}; "
            f"`portico replay ... --step {step}` opens that step."
        )
        if self.action == "rollback":
            self._roll_back(args, control, parts["model"], parts["optimizer"])
        elif self.action == "stop":
            control.should_training_stop = True

    def _is_spike(
        self,
        step: int,
        logs: Mapping[str, Any],
        *,
        model: torch.nn.Module | None = None,
        known: Mapping[int, float] | None = None,
    ) -> bool:
        """Add a logged loss to the losses or to the spikes, which may be ``known``; return whether it is a spike."""
        loss = logs.get("loss")
        if loss is None:
            return False
        has_finite_norm = math.isfinite(logs.get("grad_norm", 0.0))
        if known is not None:
            loss, found = known.get(step, loss), step in known
        else:
            loss = loss if has_finite_norm or _is_finite(model) else math.nan
            found = is_spike(loss, self._before, self.factor)
        if found:
            self.spikes.append((step, loss))
        if found or not has_finite_norm:
            return found
        self._before = [*self._before, loss][-self.window :]
        self._last_good_step = step
        return False

    def _roll_back(
        self,
        args: HFTrainingArguments,
        control: TrainerControl,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        # A later checkpoint may follow the spike: with `logging_steps` above 1 it is noticed late.
        checkpoint = newest_complete(Path(str(args.output_dir)), up_to=self._last_good_step)
        if checkpoint is None or len(self.spikes) > self.max_rollbacks:
            why = "no checkpoint before it" if checkpoint is None else f"more than {self.max_rollbacks} rollbacks"
            logger.warning(f"There is {why}, so training stops.")
            control.should_training_stop = True
            return
        load_weights(model, str(checkpoint), renames=True)
        file = checkpoint / OPTIMIZER_FILE
        with reading(file):
            # On the CPU first, as when a run is resumed: the device may have no room for a second state.
            optimizer.load_state_dict(load_tensors(file, map_location="cpu"))
        # A checkpoint of this step would contain the spike.
        control.should_save = False
        logger.warning(f"Weights and optimizer are restored from {checkpoint}.")


def _is_finite(model: torch.nn.Module | None) -> bool:
    return model is not None and all(
        bool(full_tensor(param.detach()).isfinite().all()) for param in model.parameters()
    )


# ---- Searches before a training ----


class _Search(Callback):
    """Searches once before a training, in one process on one device; a resumed run does not search."""

    _has_searched = False

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        ours: TrainerHooks = pl_module.hf_trainer
        if self._has_searched or ours.state.global_step > 0:
            return
        if ours._portico.module.is_under_plain_trainer:
            why: str | None = "train with `portico.Trainer.train()`, not with a `lightning.Trainer`"
        elif type(trainer.strategy) is not SingleDeviceStrategy:
            why = f"search in one process on one device, without `strategy={type(trainer.strategy).__name__}`"
        elif ours.accelerator.scaler is not None:
            why = "search in bf16 or 32 bits, since fp16 skips steps"
        elif hasattr(ours.optimizer, "fused_backward"):
            why = "give an optimizer that steps after the backward pass"
        else:
            why = self._obstacle(ours)
        if why is not None:
            raise InputError(f"{type(self).__name__} cannot search here; {why}.")
        self._has_searched = True
        self._search(ours)

    @abstractmethod
    def _obstacle(self, ours: "TrainerHooks") -> str | None:
        """Return what to set instead, if this search is impossible with these parts."""

    @abstractmethod
    def _search(self, ours: "TrainerHooks") -> None: ...


def _windows(ours: "TrainerHooks", num_steps: int) -> Iterator[tuple[list[Any], Any]]:
    """Yield accumulation windows of a new loader, which starts over as often as needed."""
    loader = ours.get_train_dataloader()
    num_batches = ours.args.gradient_accumulation_steps
    batches = iter(loader)
    for _ in range(num_steps):
        window, num_items = ours.get_batch_samples(batches, num_batches, ours.args.device)
        if not window:
            batches = iter(loader)
            window, num_items = ours.get_batch_samples(batches, num_batches, ours.args.device)
        if not window:
            return
        ours.current_gradient_accumulation_steps = len(window)
        yield window, num_items


def _step(ours: "TrainerHooks", batches: list[Any], num_items: Any) -> float:
    """Make an optimizer step of a window; return its loss."""
    loss = float(sum(ours.training_step(ours.model_wrapped, batch, num_items) for batch in batches))
    ours._portico.clip_and_measure_gradients()
    ours.optimizer.step()
    ours.model.zero_grad()
    return loss


@contextmanager
def _unchanged(ours: "TrainerHooks") -> Iterator[None]:
    """Run backward in each step of the block, and restore weights, modes, optimizer and random states after it."""
    tensors = [*(param for param in ours.model.parameters() if param.requires_grad), *ours.model.buffers()]
    # On the CPU, so that a search for a batch size finds the memory that the training will have.
    values = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    modes = [(module, module.training) for module in ours.model.modules()]
    optimizer = deepcopy(ours.optimizer.state_dict())
    backward = BackwardPass(ours._portico.backward_at_once, inside_step=True)
    try:
        with isolate_rng(), backward.serving(ours.accelerator):
            yield
    finally:
        ours.model.zero_grad()
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for module, mode in modes:
            module.training = mode
        ours.optimizer.load_state_dict(optimizer)


# ---- Learning rates ----

_FEWEST_RATES = 13  # Lightning's suggestion leaves out ten at the beginning and one at the end
_SMOOTHING = 0.98


@data_only
class LearningRateFinder(_Search):
    """Tries rising learning rates before a training, suggests one, and restores everything.

    The suggestion is where the smoothed loss falls fastest; it is reported, not used, unless ``apply`` is set. The
    points are written to ``lr_finder.csv`` in the run's folder, and to ``lr_finder.png`` if matplotlib is installed.

    Weights, optimizer and random states are the same after the search as before it, and data are read from a loader of
    the search, so that the training is the same as without it. Data that do not start anew in each loader, such as a
    stream of a socket, lose what the search reads. A trainer searches once, and not when it resumes a run.

    Args:
        min_lr: First learning rate.
        max_lr: Last learning rate.
        num_training_steps: Number of learning rates, at least 13, with an optimizer step each.
        mode: ``"exponential"`` or ``"linear"`` growth.
        early_stop_threshold: The search ends above this multiple of the lowest smoothed loss; ``None``: never.
        apply: Train with the suggested rate: it becomes ``args.learning_rate``. Groups of the optimizer with other
            rates keep their ratio to the first.

    Attributes:
        optimal_lr: Lightning's results, with ``results``, ``suggestion()`` and ``plot()``; ``None`` before the search.

    Raises:
        InputError: If ``mode``, the rates or their number are refused, or the run is in several processes, in fp16, on
            another backend or under a plain ``lightning.Trainer``.

    Source: L. N. Smith, arXiv:1506.01186; ``lightning.pytorch.callbacks.LearningRateFinder`` of Lightning 2.6.
    """

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1.0,
        num_training_steps: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        *,
        apply: bool = False,
    ) -> None:
        if mode not in ("exponential", "linear"):
            raise InputError(f"`mode={mode!r}` is unknown; set it to 'exponential' or 'linear'.")
        if num_training_steps < _FEWEST_RATES:
            raise InputError(
                f"`num_training_steps={num_training_steps}` is too small; set it to {_FEWEST_RATES} or more."
            )
        if not 0 < min_lr < max_lr:
            raise InputError(f"`min_lr={min_lr}` and `max_lr={max_lr}` span no rates; set 0 < `min_lr` < `max_lr`.")
        self.min_lr = min_lr
        self.max_lr = max_lr
        self.num_training_steps = num_training_steps
        self.mode = mode
        self.early_stop_threshold = early_stop_threshold
        self.apply = apply
        self.optimal_lr: LearningRateResults | None = None

    def _search(self, ours: "TrainerHooks") -> None:
        found = LearningRateResults(self.mode, self.min_lr, self.max_lr, self.num_training_steps)
        with _unchanged(ours):
            found.results.update(self._losses(ours))
        self.optimal_lr = found
        suggestion = found.suggestion()
        if suggestion is None:
            logger.warning(
                f"No learning rate can be suggested: the loss diverged after {len(found.results['lr'])} steps. Set a "
                "smaller `max_lr`, or more `num_training_steps`."
            )
        elif self.apply:
            logger.warning(f"The training uses the suggested learning rate {suggestion:.4g}.")
            _use_rate(ours, suggestion)
        else:
            logger.warning(f"Suggested learning rate: {suggestion:.4g}; `apply=True` would train with it.")
        if ours.args.should_save:
            _write_search(found, Path(str(ours.args.output_dir)))

    def _obstacle(self, ours: "TrainerHooks") -> str | None:
        if not _initial_rate(ours.optimizer.param_groups[0]):
            return "give an optimizer with a learning rate above 0"
        if self.apply and not isinstance(ours.lr_scheduler, LambdaLR):
            return f"leave `apply` out, since a {type(ours.lr_scheduler).__name__} sets the rates itself"
        return None

    def _losses(self, ours: "TrainerHooks") -> dict[str, list[float]]:
        """Train with each rate, and return the rates and the smoothed losses."""
        groups = ours.optimizer.param_groups
        shares = _shares(groups)
        rates: list[float] = []
        losses: list[float] = []
        mean = 0.0
        for step, window in enumerate(_windows(ours, self.num_training_steps)):
            rate = self._rate(step / (self.num_training_steps - 1))
            for group, share in zip(groups, shares, strict=True):
                group["lr"] = rate * share
            loss = _step(ours, *window)
            # Exponential mean without the bias of its start, as in Lightning's finder.
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            rates.append(rate)
            losses.append(mean / (1 - _SMOOTHING ** (step + 1)))
            limit = math.inf if self.early_stop_threshold is None else self.early_stop_threshold * min(losses)
            if not math.isfinite(loss) or losses[-1] > limit:
                break
        return {"lr": rates, "loss": losses}

    def _rate(self, progress: float) -> float:
        if self.mode == "linear":
            return self.min_lr + progress * (self.max_lr - self.min_lr)
        return self.min_lr * (self.max_lr / self.min_lr) ** progress


def _initial_rate(group: Mapping[str, Any]) -> float:
    return group.get("initial_lr", group["lr"])


def _shares(groups: list[dict[str, Any]]) -> list[float]:
    return [_initial_rate(group) / _initial_rate(groups[0]) for group in groups]


def _use_rate(ours: "TrainerHooks", rate: float) -> None:
    """Make ``rate`` the initial rate of the optimizer's first group, of the schedule and of the arguments."""
    groups = ours.optimizer.param_groups
    for group, share in zip(groups, _shares(groups), strict=True):
        group["lr"] = rate * share * (group["lr"] / group["initial_lr"])
        group["initial_lr"] = rate * share
    state = ours.lr_scheduler.state_dict()
    state.update(base_lrs=[group["initial_lr"] for group in groups], _last_lr=[group["lr"] for group in groups])
    ours.lr_scheduler.load_state_dict(state)
    ours.args.learning_rate = rate


def _write_search(found: LearningRateResults, folder: Path) -> None:
    with replaced(folder / "lr_finder.csv") as staging, open_new(staging, newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["lr", "loss"])
        rows.writerows(zip(found.results["lr"], found.results["loss"], strict=True))
    if find_spec("matplotlib") is None:
        logger.warning(f"{folder / 'lr_finder.csv'} has the points; `pip install matplotlib` adds a plot of them.")
        return
    from matplotlib.figure import Figure

    figure = Figure()
    found.plot(suggest=found.suggestion() is not None, ax=figure.subplots())
    with replaced(folder / "lr_finder.png") as staging:
        figure.savefig(staging)


# ---- Batch sizes ----


@data_only
class BatchSizeFinder(_Search):
    """Tries rising batch sizes before a training, suggests the largest that fits the memory, and restores everything.

    The suggestion is reported, not used, unless ``apply`` is set. A size fits if a few optimizer steps with it end
    without an out-of-memory error; sizes that were not tried are never suggested. Batches come from new loaders, so
    longer examples may come later than those that were tried: leave them some room, as ``margin`` does.

    Weights, optimizer and random states are the same after the search as before it, as for
    :class:`LearningRateFinder`. A trainer searches once. A resumed run does not search, and continues with the batch
    size of its checkpoint if ``apply`` is set.

    Args:
        mode: ``"power"`` doubles the size until memory runs out; ``"binsearch"`` then searches between the last two.
        steps_per_trial: Optimizer steps with each size, at least 1; the first one allocates the optimizer's state.
        init_val: First batch size per device.
        max_trials: Largest number of sizes tried.
        margin: Part of the largest size, from 0 to below 1, by which ``"binsearch"`` makes the suggestion smaller.
        max_val: Largest size tried. A training set with fewer examples limits the size too.
        apply: Train with the suggested size: it becomes ``args.per_device_train_batch_size``, before loaders, step
            counts and schedule are made. ``num_train_epochs`` or ``max_steps``, ``gradient_accumulation_steps`` and
            ``learning_rate`` remain, so the number of epochs means other numbers of steps.

    Attributes:
        optimal_batch_size: The suggestion; ``None`` before the search.

    Raises:
        InputError: If an argument is refused, not even one example fits, the training set is a ``DataLoader``, or the
            run is in several processes, in fp16, on another backend or under a plain ``lightning.Trainer``.

    Source: ``lightning.pytorch.callbacks.BatchSizeFinder`` of Lightning 2.6.
    """

    def __init__(
        self,
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        margin: float = 0.05,
        max_val: int = 8192,
        *,
        apply: bool = False,
    ) -> None:
        if mode not in ("power", "binsearch"):
            raise InputError(f"`mode={mode!r}` is unknown; set it to 'power' or 'binsearch'.")
        for name, value in {
            "steps_per_trial": steps_per_trial,
            "init_val": init_val,
            "max_trials": max_trials,
        }.items():
            if value < 1:
                raise InputError(f"`{name}={value}` is not positive; set it to an int >= 1.")
        if not 0 <= margin < 1:
            raise InputError(f"`margin={margin}` is not a part of the batch size; set 0 <= `margin` < 1.")
        if max_val < init_val:
            raise InputError(f"`max_val={max_val}` is below `init_val={init_val}`; set it to {init_val} or more.")
        self.mode = mode
        self.steps_per_trial = steps_per_trial
        self.init_val = init_val
        self.max_trials = max_trials
        self.margin = margin
        self.max_val = max_val
        self.apply = apply
        self.optimal_batch_size: int | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        ours: TrainerHooks = pl_module.hf_trainer
        is_resumed = ours.state.global_step > 0 and not ours._portico.module.is_under_plain_trainer
        if self.apply and is_resumed and ours.state.train_batch_size is not None:
            # The checkpoint's batch size, which the arguments of the script do not have.
            self._use(ours, ours.state.train_batch_size)
        super().on_fit_start(trainer, pl_module)

    def _obstacle(self, ours: "TrainerHooks") -> str | None:
        if isinstance(ours.train_dataset, DataLoader | pl.LightningDataModule):
            return f"a {type(ours.train_dataset).__name__} has a batch size; give its dataset as `train_dataset`"
        with ours._portico.batches_of(self.init_val):
            size = num_examples_in_round(ours.get_train_dataloader())
        if size is None:
            return "its training loader has batches of any size"
        if size != self.init_val:
            return f"`get_train_dataloader` returns batches of {size} examples, whatever the batch size is"
        return None

    def _search(self, ours: "TrainerHooks") -> None:
        most = self.max_val
        if has_length(ours.train_dataset):
            most = min(most, len(ours.train_dataset))
        with _unchanged(ours):
            best, failed = self._largest(lambda size: self._fits(ours, size), most)
        if best == 0:
            raise InputError(
                f"No batch size fits the memory: even {failed} runs out of it; set `activation_checkpointing=True`, "
                "shorten the examples, or take a smaller model."
            )
        is_reduced = self.mode == "binsearch" and failed is not None
        self.optimal_batch_size = max(1, int(best * (1 - self.margin))) if is_reduced else best
        why = "no larger size was tried" if failed is None else f"{failed} ran out of memory"
        if self.apply:
            logger.warning(f"The training uses the suggested batch size {self.optimal_batch_size}; {why}.")
            self._use(ours, self.optimal_batch_size)
        else:
            logger.warning(
                f"Suggested `per_device_train_batch_size`: {self.optimal_batch_size}; {why}. `apply=True` would train "
                "with it."
            )

    def _largest(self, fits: Callable[[int], bool], most: int) -> tuple[int, int | None]:
        """Return the largest size found that fits, 0 if none does, and the smallest that does not, if any."""
        best = 0
        failed: int | None = None
        size = min(self.init_val, most)
        for _ in range(self.max_trials):
            if fits(size):
                best = size
            else:
                failed = size
            if failed is None:
                size = min(2 * best, most)
            elif best and self.mode == "power":
                break
            else:
                size = (best + failed) // 2
            if size == best:
                break
        return best, failed

    def _fits(self, ours: "TrainerHooks", size: int) -> bool:
        release_memory()
        try:
            with ours._portico.batches_of(size):
                for window in _windows(ours, self.steps_per_trial):
                    _step(ours, *window)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            ours.model.zero_grad()
            return False
        return True

    def _use(self, ours: "TrainerHooks", size: int) -> None:
        """Restart the run with a different batch size."""
        if size != ours.args.per_device_train_batch_size:
            ours.args.per_device_train_batch_size = size
            ours._portico.module.run.next_batch_size = size
            raise EndOfFit


# ---- Profiles ----

_MOST_OPERATIONS = 40
"""Rows of the table of operations."""


class ProfilerCallback(TrainerCallback):
    """Profiles steps of a training and writes ``operations.txt``, a table, and ``trace.json``.

    Args:
        folder: Folder for both files; made if it does not exist.
        skipped_steps: Optimizer steps before the profile, at least 1: the first ones allocate memory and compile.
        profiled_steps: Optimizer steps in the profile; a shorter training writes nothing.
    """

    def __init__(self, folder: str | Path, skipped_steps: int = 5, profiled_steps: int = 10) -> None:
        self.folder = Path(folder)
        self.skipped_steps = skipped_steps
        self.profiled_steps = profiled_steps
        self._profile: profile | None = None

    def on_train_begin(
        self, args: HFTrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if not state.is_world_process_zero:
            return
        steps = schedule(wait=self.skipped_steps - 1, warmup=1, active=self.profiled_steps, repeat=1)
        activities = supported_activities() & {ProfilerActivity.CPU, ProfilerActivity.CUDA}
        self._profile = profile(activities=activities, schedule=steps, on_trace_ready=self._write)
        self._profile.start()

    def on_step_end(
        self, args: HFTrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self._profile is not None:
            self._profile.step()

    def on_train_end(
        self, args: HFTrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, profiled: profile) -> None:
        table = profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=_MOST_OPERATIONS)
        write_text(self.folder / "operations.txt", table + "\n")
        with replaced(self.folder / "trace.json") as staging:
            profiled.export_chrome_trace(str(staging))
