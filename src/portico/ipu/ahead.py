"""Training batches that are loaded ahead of the calls."""

from collections.abc import Iterator
from typing import Any

from poptorch_emulator.dataloader import rebatched
from portico.ipu import backend


class AheadLoader:
    """Loads batches while programs run.

    Data that draw random numbers should be loaded by workers: here they are drawn while others are.

    Args:
        loader: Loads in the caller's time.
        batch_size: Rows of a combined batch.
        rebatches: Whether the loader's batches have other sizes, and are joined and cut.
        drop_last: Leave out a last batch that is not full.
    """

    def __init__(self, loader: Any, *, batch_size: int, rebatches: bool, drop_last: bool) -> None:
        self.loader = loader
        self.total_batch_size = batch_size
        self._rebatches = rebatches
        self._drop_last = drop_last

    @property
    def dataset(self) -> Any:
        """The data."""
        return self.loader.dataset

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of ``epoch``."""
        self.loader.set_epoch(epoch)

    def __len__(self) -> int:
        if not self._rebatches:
            return len(self.loader)
        full, rest = divmod(len(self.dataset), self.total_batch_size)
        return full + bool(rest and not self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        yield from backend.AsynchronousDataAccessor(_PlainBatches(self))

    def batches(self) -> Iterator[Any]:
        """Yield the batches without loading ahead, as plain dicts: nothing else can be handed over."""
        batches = (dict(batch) for batch in self.loader)
        if self._rebatches:
            return rebatched(batches, self.total_batch_size, drop_last=self._drop_last)
        return batches


class _PlainBatches:
    def __init__(self, ahead: AheadLoader) -> None:
        self._ahead = ahead

    def __len__(self) -> int:
        return len(self._ahead)

    def __iter__(self) -> Iterator[Any]:
        return self._ahead.batches()
