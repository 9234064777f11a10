"""How many batches and steps an AllenNLP training has, whose loader may not know its length."""

import math
import sys
from dataclasses import dataclass, field
from typing import Any

from portico.gradient_descent.errors import ConfigurationError
from portico.hf_compat import has_length
from portico.plan import RunPlan


@dataclass
class Window:
    """The accumulation window that is being trained on.

    Args:
        end: Batches of the epoch up to the end of the window.
    """

    end: int = 0


@dataclass(frozen=True)
class EpochPlan(RunPlan):
    """Counts of a training that ends with its data.

    Args:
        window: The present window; it, and no count, tells which batch is the last of one.
    """

    window: Window = field(default_factory=Window)

    def ends_window(self, batch_idx: int) -> bool:
        """Return whether batch ``batch_idx`` of the present epoch is the last of its accumulation window."""
        return batch_idx + 1 == self.window.end

    @property
    def is_sized(self) -> bool:
        """Whether the number of batches was known beforehand."""
        return self.steps_in_epoch < sys.maxsize


def steps_per_epoch(data_loader: Any, num_gradient_accumulation_steps: int, world_size: int = 1) -> int | None:
    """Return the optimizer steps of an epoch; ``None`` if the loader has no length.

    Args:
        data_loader: The loader.
        num_gradient_accumulation_steps: Batches of a step.
        world_size: Processes that the batches are dealt out to.
    """
    if not has_length(data_loader):
        return None
    return math.ceil(len(data_loader) // world_size / num_gradient_accumulation_steps)


def count_epochs(
    data_loader: Any, *, num_epochs: int, num_gradient_accumulation_steps: int, world_size: int
) -> EpochPlan:
    """Count the batches and steps of ``num_epochs`` passes over ``data_loader``.

    Raises:
        ConfigurationError: If there are fewer batches than processes.
    """
    per_epoch = steps_per_epoch(data_loader, num_gradient_accumulation_steps)
    if per_epoch == 0:
        raise ConfigurationError(
            f"`data_loader` has fewer batches than the {world_size} processes that each need one; give one with at "
            "least as many, of smaller batches or of more data."
        )
    num_batches = sys.maxsize if per_epoch is None else len(data_loader)
    return EpochPlan(
        num_train_epochs=num_epochs,
        num_update_steps_per_epoch=per_epoch or sys.maxsize,
        steps_in_epoch=num_batches,
        max_steps=sys.maxsize if per_epoch is None else per_epoch * num_epochs,
        gradient_accumulation_steps=num_gradient_accumulation_steps,
        # The examples in a batch are the loader's affair; speeds are told in batches.
        num_examples=0 if per_epoch is None else num_batches,
        num_train_samples=0.0 if per_epoch is None else float(num_batches * num_epochs),
        total_train_batch_size=num_gradient_accumulation_steps * world_size,
    )
