"""Shortcuts through what Lightning does at every batch and nobody here asks for (read against Lightning 2.6.6).

They change no number and no order of hooks, only the time of a step; ``benchmarks/step_overhead.py`` measures it.
"""

from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.profilers import Profiler
from typing_extensions import override


class Unprofiled(Profiler):
    """A profiler that measures nothing, without the generator that Lightning's own makes for every hook."""

    _nothing: AbstractContextManager[None] = nullcontext()

    @override
    def start(self, action_name: str) -> None:
        """Do nothing."""

    @override
    def stop(self, action_name: str) -> None:
        """Do nothing."""

    @override
    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        """Return one context, which may be entered any number of times at once."""
        return self._nothing


class QuickHookNames:
    """Sets the name of the present hook, which Lightning does twenty times a step, without ``nn.Module``'s checks."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)


class BatchesInPlace:
    """Takes batches as they come: the loaders and ``_prepare_inputs`` have moved them to the device, or will."""

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        return batch

    def _apply_batch_transfer_handler(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        return batch


def pass_batches_directly(trainer: pl.Trainer) -> None:
    """Keep ``trainer`` from inspecting the signature of our ``training_step`` at every batch."""

    def step_arguments(kwargs: Any, batch: Any, batch_idx: int) -> OrderedDict[str, Any]:
        return OrderedDict(batch=batch, batch_idx=batch_idx)

    trainer.fit_loop.epoch_loop._build_kwargs = step_arguments  # type: ignore[method-assign]
