"""How far a training has come."""

from dataclasses import dataclass, field
from typing import Any

from portico.gradient_descent.losses import LossSums


@dataclass
class Progress:
    """What of a training is behind.

    Args:
        epochs_completed: Whole epochs.
        batches_in_epoch_completed: Optimizer steps of the present epoch.
        total_batches: Optimizer steps in all, with the present one.
        sums: Losses of the present epoch.
        epoch_start: Random states at the start of the present epoch.
    """

    epochs_completed: int = 0
    batches_in_epoch_completed: int = 0
    total_batches: int = 0
    sums: LossSums = field(default_factory=LossSums)
    epoch_start: dict[str, Any] | None = None

    def begin_epoch(self) -> None:
        """Begin an epoch that nothing of is behind."""
        self.batches_in_epoch_completed = 0
        self.sums = LossSums()

    def complete_epoch(self) -> None:
        """End the present epoch."""
        self.epochs_completed += 1
        self.batches_in_epoch_completed = 0
        self.epoch_start = None

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {
            "epochs_completed": self.epochs_completed,
            "batches_in_epoch_completed": self.batches_in_epoch_completed,
            "batch_num_total": self.total_batches,
        }

    def state_of_process(self) -> dict[str, Any]:
        """Return what each process has of its own, beside :meth:`state_dict`."""
        return {
            "sums": self.sums.state_dict(),
            "epoch_start": self.epoch_start if self.batches_in_epoch_completed else None,
        }

    def load_state_dict(self, state: dict[str, Any], of_process: dict[str, Any]) -> None:
        """Go on from a state, and from that of this process."""
        self.epochs_completed = state["epochs_completed"]
        self.batches_in_epoch_completed = state["batches_in_epoch_completed"]
        self.total_batches = state["batch_num_total"]
        self.sums = LossSums(**of_process["sums"])
        self.epoch_start = of_process["epoch_start"]
