"""``ORTAccelerator``: the devices of a run in ONNX Runtime."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator, CUDAAccelerator
from lightning.pytorch.accelerators.cpu import CPUAccelerator

from portico.errors import InputError
from portico.ort.settings import find_missing_packages, require


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

    parse_devices = staticmethod(CPUAccelerator.parse_devices)
    get_parallel_devices = staticmethod(CPUAccelerator.get_parallel_devices)
    auto_device_count = staticmethod(CPUAccelerator.auto_device_count)

    @staticmethod
    def is_available() -> bool:
        return not find_missing_packages()

    @staticmethod
    def name() -> str:
        return "ort"
