"""How the processes of a run share the batches of a loader."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset


@dataclass(frozen=True)
class BatchSharing:
    """What preparing a loader needs to know.

    Args:
        device: Where batches are moved.
        num_processes: Processes that share the batches.
        process_index: Which of them this is.
        broadcast: Gives every process the object of the first one.
        data_seed: Seed of the order; ``None`` takes the seed of torch's global generator when a loader is prepared.
        split_batches: Split each batch over the processes, instead of giving them batches in turn.
        dispatch_batches: Read data in the first process alone; ``None`` does so for data without indices.
        even_batches: Complete the last round of batches with examples from the start.
        seeded_order: Draw the random order from a seed and the epoch.
        non_blocking: Do not wait for copies to the device.
    """

    device: torch.device | None = None
    num_processes: int = 1
    process_index: int = 0
    broadcast: Callable[[Any], Any] = lambda data: data
    data_seed: int | None = None
    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    seeded_order: bool = True
    non_blocking: bool = False

    def reads_in_one_process(self, dataset: Any) -> bool:
        """Tell whether the first process alone reads ``dataset``."""
        if self.dispatch_batches is None:
            return isinstance(dataset, IterableDataset)
        return self.dispatch_batches
