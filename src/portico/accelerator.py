"""What user code calls on ``trainer.accelerator``, done by the Lightning strategy."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from portico.accelerator_surface import AcceleratorSurface
from portico.loaders import LookAheadLoader, prepare_loader
from portico.nested import map_tensors, pad_to_longest

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy

_WRAPPERS = (DataParallel, DistributedDataParallel, FullyShardedDataParallel)


class FacadeAccelerator(AcceleratorSurface):
    """Stands where ``accelerate.Accelerator`` stands in ``transformers.Trainer``; accelerate is not needed.

    Args:
        strategy: Returns the Lightning strategy of the present run.
        data_seed: Seed of the order of prepared loaders.

    Attributes:
        sync_gradients: Whether the batch being trained on closes its accumulation window.
        optimizer_step_was_skipped: Whether the last optimizer step was left out (overflow under ``fp16``).
    """

    def __init__(self, strategy: "Callable[[], Strategy]", data_seed: int | None = None) -> None:
        self._strategy = strategy
        self._data_seed = data_seed
        self._deferred: torch.Tensor | None = None
        self._loaders: list[Any] = []
        self.backward_now: Callable[[torch.Tensor], None] | None = torch.Tensor.backward
        self.sync_gradients = True
        self.optimizer_step_was_skipped = False

    # Where

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return self._strategy().root_device

    @property
    def num_processes(self) -> int:
        """Processes of the run."""
        return int(getattr(self._strategy(), "world_size", 1))

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

    def wait_for_everyone(self) -> None:
        """Wait until every process is here."""
        self._strategy().barrier("wait_for_everyone")

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    @property
    def precision_plugin(self) -> Any:
        """Lightning's precision of the run."""
        return self._strategy().precision_plugin

    # Gradients

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Differentiate ``loss``: in a run, when Lightning does; outside, or in a user's own step, at once."""
        if self.backward_now is not None:
            self.backward_now(loss)
        elif self._deferred is not None:
            raise RuntimeError(
                "`accelerator.backward` was called twice in one `training_step`; override `training_step` in a "
                "subclass to run several backward passes."
            )
        else:
            self._deferred = loss

    def take_deferred_loss(self) -> torch.Tensor:
        """Hand the loss of the last :meth:`backward` to Lightning."""
        loss, self._deferred = self._deferred, None
        if loss is None:
            raise RuntimeError(
                "`training_step` did not call `accelerator.backward`, so there is nothing to learn from."
            )
        return loss

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Clip gradients to a norm and return the norm they had."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def no_sync(self, model: nn.Module | None = None) -> AbstractContextManager[Any]:
        """Lightning decides when gradients are reduced; this asks for nothing."""
        return nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the forward context of the run's precision."""
        return self._strategy().precision_plugin.forward_context()

    # Models and data

    def prepare(self, *objects: Any, **kwargs: Any) -> Any:
        """Prepare data loaders; models and optimizers are the strategy's, and come back as they are."""
        prepared = [prepare_loader(item, device=self.device, data_seed=self._data_seed) for item in objects]
        for loader in prepared:
            if isinstance(loader, LookAheadLoader):
                loader.announce = self.iterating
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def prepare_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """Return ``model``: the strategy prepares it."""
        return model

    def unwrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        """Return the model inside distributed or compiled wrappers."""
        while True:
            # Wrappers are known by their kind: a user's own model may call any part of itself `module`.
            inner = model.module if isinstance(model, _WRAPPERS) else getattr(model, "_orig_mod", None)
            if not isinstance(inner, nn.Module):
                return model
            model = inner

    def free_memory(self, *objects: Any) -> None:
        """Forget nothing: the strategy gives up its memory when a run ends."""

    # Results of several processes

    def gather(self, tensor: Any) -> Any:
        """Concatenate a (nested) tensor of every process along dimension 0."""
        if self.num_processes == 1:
            return tensor
        return map_tensors(lambda item: self._strategy().all_gather(torch.atleast_1d(item)).flatten(0, 1), tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather, and drop the examples that fill up the last batch of the evaluation that is running."""
        gathered = self.gather(input_data)
        loader = self._loaders[-1] if self._loaders else None
        if loader is None or not loader.end_of_dataloader or loader.remainder <= 0:
            return gathered
        # A scalar belongs to no example.
        return map_tensors(lambda tensor: tensor[: loader.remainder] if tensor.dim() else tensor, gathered)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Pad a (nested) tensor along ``dim`` to the longest of all processes."""
        if self.num_processes == 1:
            return tensor
        return pad_to_longest(self._strategy(), tensor, dim=dim, pad_index=pad_index, pad_first=pad_first)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Reduce a (nested) tensor over all processes."""
        if self.num_processes == 1:
            return tensor
        return map_tensors(lambda item: self._strategy().reduce(item, reduce_op=reduction) * scale, tensor)

    @contextmanager
    def iterating(self, loader: Any) -> Iterator[None]:
        """Make ``loader``, while it is iterated, the one that :meth:`gather_for_metrics` asks about its last batch."""
        self._loaders.append(loader)
        try:
            yield
        finally:
            # Not always the last one: a generator that was left may be closed late.
            self._loaders.remove(loader)
