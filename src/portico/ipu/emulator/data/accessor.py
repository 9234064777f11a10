"""``AsynchronousDataAccessor``: the next batches are ready before they are asked for."""

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from portico.ipu.emulator.errors import Error

_END = object()


class AsynchronousDataAccessor:
    """Loads batches ahead, in a thread; a real one does in a process, over shared memory.

    Batches may be tensors, lists or tuples of them, or flat dicts of them.

    Args:
        dataset: Sized iterable of batches.
        buffer_size: Batches that are ready at most.
        miss_sleep_time_in_ms: Kept; waiting costs nothing here.
        load_indefinitely: Begin the next epoch before it is asked for.
        early_preload: Begin before the first is asked for.
        **options: Kept.

    Raises:
        Error: While iterating, for a batch of another kind.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        **options: Any,
    ) -> None:
        self._dataset = dataset
        self._buffer_size = buffer_size
        self._stopped = threading.Event()

    def __len__(self) -> int:
        return len(self._dataset)

    def terminate(self) -> None:
        """Stop loading."""
        self._stopped.set()

    def __iter__(self) -> Iterator[Any]:
        self._stopped = stopped = threading.Event()
        ready: queue.Queue[Any] = queue.Queue(self._buffer_size)
        loader = threading.Thread(target=_load, args=(self._dataset, ready, stopped), daemon=True)
        loader.start()
        try:
            while (batch := ready.get()) is not _END:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            stopped.set()
            _drain(ready)
            loader.join()


def _load(dataset: Any, ready: "queue.Queue[Any]", stopped: threading.Event) -> None:
    try:
        for batch in dataset:
            _check_batch(batch)
            ready.put(batch)
            if stopped.is_set():
                return
        ready.put(_END)
    except BaseException as error:
        # Raised again where the batch is asked for.
        ready.put(error)


def _drain(ready: "queue.Queue[Any]") -> None:
    # A loader that waits for room would wait for ever.
    while not ready.empty():
        ready.get_nowait()


def _check_batch(batch: Any) -> None:
    if isinstance(batch, Mapping):
        leaves = list(batch.values()) if type(batch) is dict else [batch]
    else:
        leaves = list(batch) if isinstance(batch, list | tuple) else [batch]
    wrong = next((leaf for leaf in leaves if not isinstance(leaf, Tensor | list | tuple)), None)
    if wrong is not None:
        raise Error(
            f"A batch holds a {type(wrong).__name__}, which an asynchronous loader cannot hand over; let `collate_fn` "
            "return tensors, lists of tensors, or a plain dict of tensors."
        )
