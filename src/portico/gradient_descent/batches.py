"""How many batches and steps an AllenNLP training has, whose loader may not know its length."""

import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DistributedSampler
from transformers.trainer_utils import has_length

from portico.checkpoint.rng import present_rng_states, set_rng_states
from portico.gradient_descent.errors import ConfigurationError
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
        """Tell whether batch ``batch_idx`` of the present epoch is the last of its accumulation window."""
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


logger = logging.getLogger(__name__)


class DealtBatches:
    """This process's share of a loader that every process goes through in the same order.

    Of each ``world_size`` batches every process takes one, so that all make the same number of steps; what is left
    over at the end is not used.

    Args:
        loader: Batches, the same in every process.
        rank: Number of this process.
        world_size: Processes.
    """

    def __init__(self, loader: Any, rank: int, world_size: int) -> None:
        self.loader = loader
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while len(deal := list(islice(batches, self.world_size))) == self.world_size:
            yield deal[self.rank]
        if deal:
            logger.warning(
                "The data cannot be dealt out evenly to %d processes: %d batches of this epoch are not used.",
                self.world_size,
                len(deal),
            )


class _SizedDealtBatches(DealtBatches):
    def __len__(self) -> int:
        return len(self.loader) // self.world_size


def dealt(loader: Any, args: Any) -> Any:
    """Return the share of ``loader`` that is this process's; one that was divided already is returned as it is."""
    samplers = (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    if args.world_size == 1 or any(isinstance(sampler, DistributedSampler) for sampler in samplers):
        return loader
    kind = _SizedDealtBatches if has_length(loader) else DealtBatches
    return kind(loader, args.process_index, args.world_size)


_WHERE = ("", "sampler", "batch_sampler", "batch_sampler.sampler")


def present_states(data_loader: Any, args: Any) -> dict[str, Any]:
    """Return the states of the global generators and of those that ``data_loader`` has of its own."""
    return {
        "global": present_rng_states(args),
        "data_loader": [generator.get_state() for generator in _generators(data_loader)],
    }


def set_states(states: dict[str, Any], data_loader: Any, args: Any) -> None:
    """Bring all generators to ``states``."""
    set_rng_states(states["global"], args)
    for generator, state in zip(_generators(data_loader), states["data_loader"], strict=True):
        generator.set_state(state)


def _generators(data_loader: Any) -> list[torch.Generator]:
    """Return the distinct generators of a loader and its samplers, in a fixed order."""
    found: dict[int, torch.Generator] = {}
    for path in _WHERE:
        owner = data_loader
        for name in path.split(".") if path else ():
            owner = getattr(owner, name, None)
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            found.setdefault(id(generator), generator)
    return list(found.values())
