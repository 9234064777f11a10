"""Losses of an epoch, and the metrics they become."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from portico.hf_compat import denumpify_detensorize


@dataclass
class LossSums:
    """Sums over the steps (or validation batches) of an epoch.

    Args:
        loss: Sum of the losses, penalties included.
        reg_loss: Sum of the regularization penalties; ``None`` if the model has none.
        num_batches: Steps, or validation batches with a loss.
        batch_loss: Loss of the present step.
        batch_reg_loss: Penalty of the present step.
    """

    loss: float = 0.0
    reg_loss: float | None = None
    num_batches: int = 0
    batch_loss: float = 0.0
    batch_reg_loss: float | None = None

    def begin_batch(self) -> None:
        """Begin a step."""
        self.batch_loss = 0.0
        self.batch_reg_loss = None

    def add(self, outputs: dict[str, Any], group_size: int = 1) -> None:
        """Add the loss of one batch of a step that accumulates ``group_size`` of them."""
        self.batch_loss += (outputs["loss"].detach() / group_size).item()
        penalty = outputs.get("reg_loss")
        if penalty is not None:
            self.batch_reg_loss = (self.batch_reg_loss or 0.0) + (penalty.detach() / group_size).item()

    def end_batch(self) -> None:
        """Add the present step to the sums."""
        self.num_batches += 1
        self.loss += self.batch_loss
        if self.batch_reg_loss is not None:
            self.reg_loss = (self.reg_loss or 0.0) + self.batch_reg_loss

    def reduced(self, accelerator: Any) -> "LossSums":
        """Return the sums over all processes."""
        if accelerator.num_processes == 1:
            return self
        here = torch.tensor(
            [self.loss, self.reg_loss or 0.0, self.num_batches], dtype=torch.float64, device=accelerator.device
        )
        loss, reg_loss, num_batches = accelerator.reduce(here).tolist()
        return LossSums(loss, None if self.reg_loss is None else reg_loss, int(num_batches))

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed epoch needs."""
        return asdict(self)


def batch_metrics(model: nn.Module, sums: LossSums) -> dict[str, Any]:
    """Return the metrics of the epoch so far, with those of the present step."""
    metrics = _model_metrics(model, reset=False)
    metrics["batch_loss"] = sums.batch_loss
    if sums.batch_reg_loss is not None:
        metrics["batch_reg_loss"] = sums.batch_reg_loss
    return {**metrics, **_means(sums)}


def epoch_metrics(model: nn.Module, sums: LossSums, accelerator: Any) -> dict[str, Any]:
    """Return the metrics of an epoch over all processes, and reset those of the model."""
    metrics = {
        name: _mean_over_processes(value, accelerator) for name, value in _model_metrics(model, reset=True).items()
    }
    return {**metrics, **_means(sums.reduced(accelerator))}


def _model_metrics(model: nn.Module, *, reset: bool) -> dict[str, Any]:
    get_metrics = getattr(model, "get_metrics", None)
    # Plain numbers: what a checkpoint keeps is read back without running any code that it holds.
    return denumpify_detensorize(dict(get_metrics(reset=reset))) if get_metrics is not None else {}


def _means(sums: LossSums) -> dict[str, float]:
    count = sums.num_batches
    means = {"loss": sums.loss / count if count else 0.0}
    if sums.reg_loss is not None:
        means["reg_loss"] = sums.reg_loss / count if count else 0.0
    return means


def _mean_over_processes(value: Any, accelerator: Any) -> Any:
    if accelerator.num_processes == 1 or not isinstance(value, int | float):
        return value
    here = torch.tensor(float(value), dtype=torch.float64, device=accelerator.device)
    return accelerator.reduce(here, "mean").item()
