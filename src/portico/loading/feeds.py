"""What Lightning's loops read batches from.

Lightning rebuilds a ``DataLoader`` it is given, adds samplers to it and fetches ahead of it; a sized iterable that is
not a ``DataLoader`` it takes as it is. Both feeds are generators, so that nothing happens before the first batch is
asked for.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from transformers.trainer_utils import has_length


class TrainFeed:
    """The micro-batches of an epoch, fetched an accumulation window at a time.

    Args:
        num_batches: Batches in an epoch.
        open_epoch: Called when an epoch's first batch is asked for; yields its batches.
    """

    def __init__(self, num_batches: int, open_epoch: Callable[[], Iterator[Any]]) -> None:
        self.num_batches = num_batches
        self.open_epoch = open_epoch

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        return self.open_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: where a run goes on is known from its step count. Tells Lightning that resuming is safe."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take nothing (see :meth:`state_dict`)."""


class EvaluationFeed:
    """The batches of an evaluation, in the loader's order.

    Args:
        loader: Any iterable of batches.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader) if has_length(self.loader) else sys.maxsize

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader
