"""What user code calls on ``trainer.accelerator``, done by the Lightning strategy."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from portico.accelerator.surface import AcceleratorSurface
from portico.distributed.process_group import ProcessGroup
from portico.loading.loaders import LookAheadLoader, skip_first_batches
from portico.loading.prepared_loaders import prepare_loader
from portico.loading.sharing import BatchSharing

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy

_WRAPPERS = (DataParallel, DistributedDataParallel, FullyShardedDataParallel)


class FacadeAccelerator(ProcessGroup, AcceleratorSurface):
    """Stands where ``accelerate.Accelerator`` stands in ``transformers.Trainer``; accelerate is not needed.

    Args:
        strategy: Returns the Lightning strategy of the present run.
        sharing: Options of ``BatchSharing`` for prepared loaders.

    Attributes:
        sync_gradients: Whether the batch being trained on closes its accumulation window.
        optimizer_step_was_skipped: Whether the last optimizer step was left out (overflow under ``fp16``).
    """

    def __init__(self, strategy: "Callable[[], Strategy]", sharing: Mapping[str, Any] | None = None) -> None:
        super().__init__(strategy)
        self._sharing = dict(sharing or {})
        self._deferred: torch.Tensor | None = None
        self.backward_now: Callable[[torch.Tensor], None] | None = torch.Tensor.backward
        self.sync_gradients = True
        self.optimizer_step_was_skipped = False

    # Numbers

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
        spread = getattr(self._strategy(), "model", None)
        if isinstance(spread, FullyShardedDataParallel):
            # Each process has a part of the gradients: their norm is that of all parts.
            return spread.clip_grad_norm_(max_norm, norm_type)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def no_sync(self, model: nn.Module | None = None) -> AbstractContextManager[Any]:
        """Keep the gradients of ``model``, if several processes train it, to this one inside the block."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the forward context of the run's precision."""
        return self._strategy().precision_plugin.forward_context()

    # Models and data

    def prepare(self, *objects: Any, **kwargs: Any) -> Any:
        """Prepare data loaders; models and optimizers are the strategy's, and come back as they are."""
        sharing = self._batch_sharing()
        prepared = [prepare_loader(item, sharing) for item in objects]
        for loader in prepared:
            if isinstance(loader, LookAheadLoader):
                loader.announce = self.iterating
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return a loader that goes on after ``num_batches``."""
        return skip_first_batches(dataloader, num_batches)

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

    def _batch_sharing(self) -> BatchSharing:
        return BatchSharing(
            device=self.device,
            num_processes=self.num_processes,
            process_index=self.process_index,
            broadcast=self.from_first_process,
            **self._sharing,
        )
