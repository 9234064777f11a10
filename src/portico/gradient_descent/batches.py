"""The batches of a run: their number, the share of each process, and the random states that reproduce them."""

import logging
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DistributedSampler
from transformers import TrainingArguments

from portico.checkpoint.resume import present_rng_states, set_rng_states
from portico.compat.transformers import has_length
from portico.gradient_descent.construction import ConfigurationError
from portico.loop.plan import RunPlan

logger = logging.getLogger(__name__)


def count_batches(data_loader: Iterable[Any]) -> int | None:
    """Return the length of a loader, or ``None`` if it has none."""
    return len(data_loader) if has_length(data_loader) else None


def steps_per_epoch(
    data_loader: Iterable[Any], num_gradient_accumulation_steps: int, world_size: int = 1
) -> int | None:
    """Return the optimizer steps of an epoch that ``world_size`` processes share; ``None`` without a length."""
    num_batches = count_batches(data_loader)
    return None if num_batches is None else math.ceil(num_batches // world_size / num_gradient_accumulation_steps)


def count_epochs(
    data_loader: Iterable[Any], *, num_epochs: int, num_gradient_accumulation_steps: int, world_size: int
) -> RunPlan:
    """Count the batches and steps of ``num_epochs`` passes over the share ``data_loader`` of one process."""
    per_epoch = steps_per_epoch(data_loader, num_gradient_accumulation_steps)
    if per_epoch == 0:
        raise ConfigurationError(
            f"`data_loader` has fewer batches than the {world_size} processes that each need one; use smaller batches "
            "or more data."
        )
    num_batches = count_batches(data_loader) or sys.maxsize
    data = getattr(data_loader, "dataset", None)
    num_examples = len(data) if per_epoch is not None and has_length(data) else 0
    return RunPlan(
        num_train_epochs=num_epochs,
        num_update_steps_per_epoch=per_epoch or sys.maxsize,
        steps_in_epoch=num_batches,
        max_steps=sys.maxsize if per_epoch is None else per_epoch * num_epochs,
        gradient_accumulation_steps=num_gradient_accumulation_steps,
        num_examples=num_examples,
        # NaN if a loader does not say: no speed is reported in examples.
        num_train_samples=num_examples * num_epochs or math.nan,
        total_train_batch_size=num_gradient_accumulation_steps * world_size,
    )


@dataclass(frozen=True)
class SharedBatches:
    """The share of one process in a loader that every process iterates in the same order.

    Each process takes one of every ``world_size`` batches, so that all make the same number of steps; the remainder at
    the end is not used.
    """

    loader: Any
    rank: int
    world_size: int

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while len(group := list(islice(batches, self.world_size))) == self.world_size:
            yield group[self.rank]
        if group:
            logger.warning(
                "The batches cannot be shared evenly by %d processes: %d batches of this epoch are not used.",
                self.world_size,
                len(group),
            )

    def __len__(self) -> int:
        # A TypeError, if the loader has no length: then this has none either.
        return len(self.loader) // self.world_size


def share_batches(loader: Iterable[Any], args: TrainingArguments) -> Any:
    """Return this process's share of ``loader``; a loader with a ``DistributedSampler`` is returned unchanged."""
    if args.world_size == 1 or any(isinstance(part, DistributedSampler) for part in _list_samplers(loader)):
        return loader
    return SharedBatches(loader, args.process_index, args.world_size)


def set_epoch(loader: object, epoch: int) -> None:
    """Tell a loader and its samplers which epoch comes next, as torch's ``DistributedSampler`` needs."""
    for part in {id(part): part for part in _list_samplers(loader)}.values():
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def random_states(data_loader: object, args: TrainingArguments) -> dict[str, Any]:
    """Return the states of the global generators and of those that ``data_loader`` owns."""
    return {
        "global": present_rng_states(args),
        "data_loader": [generator.get_state() for generator in _generators(data_loader)],
    }


def set_random_states(states: dict[str, Any], data_loader: object, args: TrainingArguments) -> None:
    set_rng_states(states["global"], args)
    for generator, state in zip(_generators(data_loader), states["data_loader"], strict=True):
        generator.set_state(state)


def _generators(data_loader: object) -> list[torch.Generator]:
    """Return the distinct generators of a loader and its samplers, in a fixed order."""
    generators = (getattr(part, "generator", None) for part in _list_samplers(data_loader))
    return list(
        {id(generator): generator for generator in generators if isinstance(generator, torch.Generator)}.values()
    )


def _list_samplers(loader: object) -> tuple[object, ...]:
    """Return a loader, its sampler, its batch sampler and the batch sampler's sampler; ``None`` for missing ones."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)
