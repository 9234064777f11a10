"""A device that is not the CPU and computes nothing: torch's meta device, as an accelerator of Lightning.

Operations check devices, shapes and dtypes as on any accelerator. A tensor left on the CPU cannot be mixed with those
of the device, and reading a value back (``.item()``, ``bool(tensor)``, ``.cpu()``), for which a step would wait on a
GPU, raises.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy

DEVICE = torch.device("meta")


class MetaAccelerator(Accelerator):
    """Lightning's view of the device."""

    device: ClassVar[torch.device] = DEVICE

    def setup_device(self, device: torch.device) -> None:
        assert device == self.device

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    def teardown(self) -> None:
        """Nothing was allocated."""

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return [0]

    @classmethod
    def get_parallel_devices(cls, devices: Any) -> list[torch.device]:  # type: ignore[override]
        return [cls.device]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @classmethod
    def name(cls) -> str:  # type: ignore[override]
        return cls.device.type


class MetaStrategy(SingleDeviceStrategy):
    """Places a run on the device."""

    def __init__(self) -> None:
        super().__init__(device=DEVICE, accelerator=MetaAccelerator())
