"""Spikes of the loss: found in a log history, or while training by the callback :class:`LossSpike`."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from portico.arguments import TrainingArguments
from portico.checkpoint.manifest import newest_complete, reading
from portico.checkpoint.weights import load_weights
from portico.checkpoint.writer import OPTIMIZER_FILE
from portico.compat.transformers import ExportableState, logger
from portico.distributed.model_parallel import full_tensor
from portico.errors import InputError

_ACTIONS = ("report", "stop", "rollback")


def is_spike(loss: float, before: list[float], factor: float) -> bool:
    """Return whether a loss is not finite or above ``factor`` times the median of the losses before it."""
    return not math.isfinite(loss) or (bool(before) and loss > factor * median(before) > 0)


def find_spike(log_history: Iterable[Mapping[str, Any]], *, window: int = 10) -> tuple[int, float] | None:
    """Return the step of the worst spike and its loss: the first that is not finite, else the largest jump.

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


class LossSpike(TrainerCallback, ExportableState):
    """Reacts when a logged loss is not finite or far above those before it.

    A gradient norm that is not finite counts as such a loss if it has reached the weights, which it does not when a
    gradient scaler skips the step (fp16). Checkpoints hold the spikes, so that a resumed run knows them.

    Args:
        action: ``"report"`` warns, ``"stop"`` also ends the training, ``"rollback"`` restores weights and optimizer of
            the last checkpoint before the spike; data, learning rate and gradient scaler continue from the spike, so
            that the batches before it are left behind.
        factor: How many times the median of the last losses is a spike.
        window: Logged losses that the median is taken of.
        max_rollbacks: After so many the training is ended.

    Attributes:
        spikes: Step and loss of each spike, those before the checkpoint that a run resumed from included.

    Raises:
        InputError: If ``action`` is unknown.
    """

    def __init__(
        self, action: str = "report", *, factor: float = 3.0, window: int = 10, max_rollbacks: int = 3
    ) -> None:
        if action not in _ACTIONS:
            raise InputError(f"`action={action!r}` is unknown; set it to one of {', '.join(map(repr, _ACTIONS))}.")
        self.action, self.factor, self.window, self.max_rollbacks = action, factor, window, max_rollbacks
        self.spikes: list[tuple[int, float]] = []
        self._before: list[float] = []
        self._last_good_step = 0

    def on_train_begin(  # type: ignore[override]  # transformers annotates none of the keywords
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        callbacks: Any = state.stateful_callbacks  # by class, as a checkpoint has them
        stored = callbacks.get(type(self).__name__) if state.global_step else None
        # None for a run without this callback, or with several.
        known = dict(stored["attributes"]["spikes"]) if isinstance(stored, Mapping) else None
        self.spikes, self._before, self._last_good_step = [], [], 0
        for row in state.log_history:
            self._is_spike(int(row["step"]), row, known=known)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        names = ("action", "factor", "window", "max_rollbacks")
        return {"args": {name: getattr(self, name) for name in names}, "attributes": {"spikes": self.spikes}}

    def on_log(  # type: ignore[override]
        self,
        args: TrainingArguments,
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
        """Add what was logged at a step to the losses or to the spikes, which may be ``known``."""
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

    def _roll_back(self, args: TrainingArguments, control: TrainerControl, model: Any, optimizer: Any) -> None:
        # A later one may be of a step after the spike: with `logging_steps` above 1 it is seen late.
        checkpoint = newest_complete(Path(args.output_dir), up_to=self._last_good_step)
        if checkpoint is None or len(self.spikes) > self.max_rollbacks:
            why = "no checkpoint before it" if checkpoint is None else f"more than {self.max_rollbacks} rollbacks"
            logger.warning(f"There is {why}, so the training ends.")
            control.should_training_stop = True
            return
        load_weights(model, str(checkpoint), renames=True)
        file = checkpoint / OPTIMIZER_FILE
        with reading(file):
            optimizer.load_state_dict(torch.load(file, map_location=args.device, weights_only=True))
        # A checkpoint of this very step would be one of the spike.
        control.should_save = False
        logger.warning(f"Weights and optimizer are those of {checkpoint} again.")


def _is_finite(model: torch.nn.Module | None) -> bool:
    return model is not None and all(bool(full_tensor(one.detach()).isfinite().all()) for one in model.parameters())
