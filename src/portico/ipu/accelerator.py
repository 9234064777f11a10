"""``IPUAccelerator``: what Lightning asks about the hardware."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator
from typing_extensions import override

from portico.errors import InputError
from portico.ipu.strategy import IPUStrategy


class IPUAccelerator(Accelerator):
    """Graphcore's IPUs, or their emulation; goes with ``strategy="ipu"``.

    ``devices`` are replicas: copies of the model that work on other data.
    """

    @override
    def setup_device(self, device: torch.device) -> None:
        """Accept the host's CPU, where tensors come from and go to."""

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Refuse a strategy that would run on the CPU without a word.

        Raises:
            InputError: If the strategy is none for IPUs.
        """
        if not isinstance(trainer.strategy, IPUStrategy):
            raise InputError(
                f"`accelerator='ipu'` came with the strategy {type(trainer.strategy).__name__}, which would run on "
                "the CPU instead; set `strategy='ipu'`, or pass an `IPUStrategy`."
            )

    @override
    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return nothing: programs are not watched while they run."""
        return {}

    @override
    def teardown(self) -> None:
        """Leave the devices to the strategy, whose programs hold them."""

    @staticmethod
    @override
    def parse_devices(devices: int | str | list[int]) -> int:
        """Return the number of replicas."""
        return len(devices) if isinstance(devices, list) else int(devices)

    @staticmethod
    @override
    def get_parallel_devices(devices: int) -> list[torch.device]:
        """Return the host's CPU, once for each replica."""
        return [torch.device("cpu")] * devices

    @staticmethod
    @override
    def auto_device_count() -> int:
        """Return one: more replicas change the batch that a step is made of, so they are asked for."""
        return 1

    @staticmethod
    @override
    def is_available() -> bool:
        """Tell that programs can run: on IPUs, or on the emulator."""
        return True

    @staticmethod
    @override
    def name() -> str:
        """Return the name that Lightning knows the accelerator by."""
        return "ipu"
