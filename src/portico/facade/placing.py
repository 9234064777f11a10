"""Models on their device and in their wrapper."""

from typing import Any

import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from torch import nn

from portico.contract import Facade
from portico.run_log import logger


class PlacingMethods(Facade):
    """How the facade places a model.

    Attributes:
        is_model_parallel: Whether the layers of the model lie on several devices.
        place_model_on_device: Whether the facade moves the model to the device of this process.
        is_deepspeed_enabled: Whether the strategy is DeepSpeed.
        is_fsdp_enabled: Whether the strategy is FSDP.
        deepspeed: None: the strategy holds DeepSpeed's engine.
        is_fsdp_xla_enabled: False: no strategy here runs FSDP on XLA.
        is_distributed_loading_by_transformers: False: no model here is sharded before the strategy sees it.
    """

    deepspeed = None
    is_fsdp_xla_enabled = False
    is_fsdp_xla_v1_enabled = False
    is_fsdp_xla_v2_enabled = False
    is_distributed_loading_by_transformers = False

    def _note_placement(self, model: nn.Module) -> None:
        """Note where ``model`` lies, under the names that subclasses read."""
        self.is_model_parallel = _is_spread(model, self.args.device)
        placed = self.args.place_model_on_device
        self.place_model_on_device = not self.is_model_parallel if placed is None else placed

    def _note_strategy(self, strategy: Any) -> None:
        """Note what ``strategy`` is, under the names that subclasses read."""
        self.is_deepspeed_enabled = isinstance(strategy, DeepSpeedStrategy)
        self.is_fsdp_enabled = isinstance(strategy, FSDPStrategy)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if getattr(model, "hf_device_map", None) is not None:
            logger.warning("The layers of the model lie on several devices already, so it stays where it is.")
            return
        model.to(device)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return what runs forward in place of ``model``: itself, since the Lightning strategy wraps it."""
        return model


def _is_spread(model: nn.Module, device: torch.device) -> bool:
    """Tell whether ``from_pretrained(device_map=...)`` put layers elsewhere than on ``device``."""
    layers: Any = getattr(model, "hf_device_map", None) or {}
    devices = {place for place in layers.values() if place not in ("cpu", "disk")}
    return len(devices) > 1 or any(torch.device(place) != device for place in devices)
