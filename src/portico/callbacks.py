"""Callbacks: :class:`LossSpike` reacts to spikes of the loss, :class:`ProfilerCallback` profiles training steps."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities
from transformers import TrainerCallback, TrainerControl, TrainerState

from portico.checkpoint.manifest import newest_complete, reading
from portico.checkpoint.weights import load_weights
from portico.checkpoint.writer import OPTIMIZER_FILE
from portico.compat.transformers import ExportableState, HFTrainingArguments, logger
from portico.distributed.model_parallel import full_tensor
from portico.errors import InputError
from portico.trust.names import data_only

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
            optimizer.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        # A checkpoint of this step would contain the spike.
        control.should_save = False
        logger.warning(f"Weights and optimizer are restored from {checkpoint}.")


def _is_finite(model: torch.nn.Module | None) -> bool:
    return model is not None and all(bool(full_tensor(one.detach()).isfinite().all()) for one in model.parameters())


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
        self.folder.mkdir(parents=True, exist_ok=True)
        table = profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=_MOST_OPERATIONS)
        (self.folder / "operations.txt").write_text(table + "\n", encoding="utf-8")
        profiled.export_chrome_trace(str(self.folder / "trace.json"))
