"""``IPUAccelerator``: what Lightning needs to know about the hardware."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator
from typing_extensions import override

from portico.errors import InputError
from portico.ipu.strategy import IPUStrategy


class IPUAccelerator(Accelerator):
    """Graphcore's IPUs, or their emulation; to be used with ``strategy="ipu"``.

    ``devices`` is the number of replicas, data-parallel copies of the model.
    """

    @override
    def setup_device(self, device: torch.device) -> None:
        """Accept the host's CPU, where tensors come from and go to."""

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Refuse a strategy that is not for IPUs: it would silently run on the CPU."""
        if not isinstance(trainer.strategy, IPUStrategy):
            raise InputError(
                f"`accelerator='ipu'` needs an `IPUStrategy`; {type(trainer.strategy).__name__} would run on the CPU. "
                "Set `strategy='ipu'`, or pass an `IPUStrategy`."
            )

    @override
    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return an empty dict: running programs are not monitored."""
        return {}

    @override
    def teardown(self) -> None:
        """Do nothing: the strategy detaches the devices."""

    @staticmethod
    @override
    def parse_devices(devices: int | str | list[int]) -> int:
        return len(devices) if isinstance(devices, list) else int(devices)

    @staticmethod
    @override
    def get_parallel_devices(devices: int) -> list[torch.device]:
        """Return the host's CPU once for each replica."""
        return [torch.device("cpu")] * devices

    @staticmethod
    @override
    def auto_device_count() -> int:
        """Return one: more replicas would change the batch of a step."""
        return 1

    @staticmethod
    @override
    def is_available() -> bool:
        """Return ``True``: without IPUs, the emulator runs."""
        return True

    @staticmethod
    @override
    def name() -> str:
        return "ipu"
