"""The processes of a run, and what they tell each other, by the Lightning strategy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from portico.distributed.processes import all_gather, connect, disconnect, first_process_first
from portico.lightning_internals import makes_workers
from portico.nested import map_tensors, pad_to_longest

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy


class ProcessGroup:
    """What user code asks an ``accelerate.Accelerator`` about processes.

    Args:
        strategy: Returns the Lightning strategy of the present run.
    """

    def __init__(self, strategy: "Callable[[], Strategy]") -> None:
        self._strategy = strategy
        self._loaders: list[Any] = []

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return self._strategy().root_device

    @property
    def num_processes(self) -> int:
        """Processes of the run; where each call has workers of its own, this one is alone between the calls."""
        strategy = self._strategy()
        return 1 if makes_workers(strategy) else int(getattr(strategy, "world_size", 1))

    @property
    def process_index(self) -> int:
        """Rank of this process among all."""
        return int(getattr(self._strategy(), "global_rank", 0))

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its machine."""
        return int(getattr(self._strategy(), "local_rank", 0))

    @property
    def is_main_process(self) -> bool:
        """Whether this is the first process of all."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last process of all."""
        return self.process_index == self.num_processes - 1

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    # Waiting

    def wait_for_everyone(self) -> None:
        """Wait until every process is here."""
        self._connected().barrier("wait_for_everyone")

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the first process of all do the block before the others."""
        with first_process_first(self._connected(), is_first=self.is_main_process):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let the first process of each machine do the block before the others."""
        with first_process_first(self._connected(), is_first=self.is_local_main_process):
            yield

    def end_training(self) -> None:
        """Part from the other processes, at the very end of a script."""
        disconnect()

    # Results of several processes

    def from_first_process(self, data: Any) -> Any:
        """Return what the first process gives, any object that pickles."""
        return data if self.num_processes == 1 else self._connected().broadcast(data)

    def gather(self, tensor: Any) -> Any:
        """Concatenate a (nested) tensor of every process along dimension 0."""
        if self.num_processes == 1:
            return tensor
        strategy = self._connected()
        return map_tensors(lambda item: all_gather(strategy, torch.atleast_1d(item)).flatten(0, 1), tensor)

    def gather_object(self, data: Any) -> Any:
        """Concatenate the lists of every process; on one process, return ``data`` as it is."""
        if self.num_processes == 1:
            return data
        self._connected()
        gathered: list[Any] = [None] * self.num_processes
        torch.distributed.all_gather_object(gathered, data)
        return [item for items in gathered for item in items]

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather, and drop the examples that fill up the last batch of the evaluation that is running.

        Args:
            input_data: Nested tensors, or objects in a list.
            use_gather_object: Take tensors for objects too: they may differ in shape, and come back in a list.
        """
        as_objects = use_gather_object or not _all_tensors(input_data)
        gathered = self.gather_object(input_data) if as_objects else self.gather(input_data)
        loader = self._loaders[-1] if self._loaders else None
        if loader is None or not loader.end_of_dataloader or loader.remainder <= 0:
            return gathered
        if as_objects:
            return gathered if isinstance(gathered, Mapping) else gathered[: loader.remainder]
        # A scalar belongs to no example.
        return map_tensors(lambda tensor: tensor[: loader.remainder] if tensor.dim() else tensor, gathered)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Pad a (nested) tensor along ``dim`` to the longest of all processes."""
        if self.num_processes == 1:
            return tensor
        strategy = self._connected()
        options: dict[str, Any] = {"dim": dim, "pad_index": pad_index, "pad_first": pad_first}
        return pad_to_longest(lambda length: all_gather(strategy, length), tensor, **options)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Reduce a (nested) tensor over all processes; as under accelerate, ``scale`` is for TPUs alone.

        Args:
            tensor: Nested tensors.
            reduction: ``"sum"``, ``"mean"`` or ``"max"``.
            scale: Without effect.
        """
        if self.num_processes == 1:
            return tensor
        strategy = self._connected()
        return map_tensors(lambda item: strategy.reduce(item.clone(), reduce_op=reduction), tensor)

    @contextmanager
    def iterating(self, loader: Any) -> Iterator[None]:
        """Make ``loader``, while it is iterated, the one that :meth:`gather_for_metrics` asks about its last batch."""
        self._loaders.append(loader)
        try:
            yield
        finally:
            # Not always the last one: a generator that was left may be closed late.
            self._loaders.remove(loader)

    def _connected(self) -> "Strategy":
        strategy = self._strategy()
        connect(strategy)
        return strategy


def _all_tensors(data: Any) -> bool:
    if isinstance(data, Mapping):
        return all(_all_tensors(value) for value in data.values())
    if isinstance(data, list | tuple):
        return all(_all_tensors(value) for value in data)
    return isinstance(data, torch.Tensor)
