"""Models on their device and in their wrapper."""

from typing import Any

import torch
from torch import nn

from portico.contract import Facade
from portico.run_log import logger


class PlacingMethods(Facade):
    """How the facade places a model."""

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if getattr(model, "hf_device_map", None) is not None:
            logger.warning(
                "The model is already on multiple devices. Skipping the move to device specified in `args`."
            )
            return
        model.to(device)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return what runs forward in place of ``model``: itself, since the Lightning strategy wraps it."""
        return model
