"""``ORTAccelerator``: the devices of a run in ONNX Runtime."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator, CUDAAccelerator
from lightning.pytorch.accelerators.cpu import CPUAccelerator

from portico.errors import InputError
from portico.ort.settings import is_available, require


class ORTAccelerator(Accelerator):
    """ONNX Runtime, on the CPU or, where its CUDA provider is installed, on CUDA devices.

    It only places tensors; the strategy runs models in ONNX Runtime, so set ``strategy="ort"`` too.

    Raises:
        InputError: If ONNX Runtime is not installed; names the extra to install.
    """

    def __init__(self) -> None:
        require()

    def setup_device(self, device: torch.device) -> None:
        if device.type == "cuda":
            CUDAAccelerator().setup_device(device)

    def setup(self, trainer: pl.Trainer) -> None:
        """Check that the strategy runs the model in ONNX Runtime.

        Raises:
            InputError: If it would run in torch.
        """
        from portico.ort.strategy import RunsInORT

        if not isinstance(trainer.strategy, RunsInORT):
            raise InputError(
                f"`accelerator='ort'`, but {type(trainer.strategy).__name__} would run the model in torch; set "
                "`strategy='ort'` too, or `strategy='ort_ddp'` for several devices."
            )

    def teardown(self) -> None:
        """Nothing to release."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return CPUAccelerator.parse_devices(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return CPUAccelerator.get_parallel_devices(devices)

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return is_available()

    @staticmethod
    def name() -> str:
        return "ort"
