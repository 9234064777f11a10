"""The batches of a loader dealt out to the processes of a run."""

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DistributedSampler

from portico.hf_compat import has_length

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
