from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator, CUDAAccelerator
from lightning.pytorch.accelerators.cpu import CPUAccelerator

from portico.errors import InputError
from portico.ort.settings import is_available, require


class ORTAccelerator(Accelerator):
    """ONNX Runtime, on the CPU or, where its CUDA provider is installed, on CUDA devices.

    It says where tensors are; that models run in ONNX Runtime is the strategy's doing: choose ``strategy="ort"`` too.

    Raises:
        InputError: If ONNX Runtime is not installed; names the extra to install.
    """

    def __init__(self) -> None:
        require()

    def setup_device(self, device: torch.device) -> None:
        """Prepare ``device``."""
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
        """Nothing is left behind."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """Return how many devices are asked for."""
        return CPUAccelerator.parse_devices(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Return a torch device for each process."""
        return CPUAccelerator.get_parallel_devices(devices)

    @staticmethod
    def auto_device_count() -> int:
        """Return the number of devices that ``devices="auto"`` means."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Return whether ONNX Runtime can be imported."""
        return is_available()

    @staticmethod
    def name() -> str:
        """Return the name Lightning knows it by."""
        return "ort"
