"""``IPUAccelerator``: what Lightning needs to know about the hardware."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from typing_extensions import override

from portico.errors import InputError
from portico.ipu.strategy import IPUStrategy


class IPUAccelerator(CPUAccelerator):
    """Graphcore's IPUs, or their emulation; to be used with ``strategy="ipu"``.

    ``devices`` is the number of replicas, data-parallel copies of the model. Tensors come from the host's CPU and
    return to it; the strategy attaches and detaches the IPUs.
    """

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Refuse a strategy that is not for IPUs: it would silently run on the CPU."""
        if not isinstance(trainer.strategy, IPUStrategy):
            raise InputError(
                f"`accelerator='ipu'` needs an `IPUStrategy`; {type(trainer.strategy).__name__} would run on the CPU. "
                "Set `strategy='ipu'`, or pass an `IPUStrategy`."
            )

    @override
    def get_device_stats(self, device: str | int | torch.device) -> dict[str, Any]:
        """Return an empty dict: running programs are not monitored."""
        return {}

    @staticmethod
    @override
    def parse_devices(devices: int | str | list[int]) -> int:
        """Return the number of replicas.

        Raises:
            InputError: If it is not positive, such as -1 for all IPUs: how many a replica takes is known only when it
                has been compiled.
        """
        number = len(devices) if isinstance(devices, list) else int(devices)
        if number < 1:
            raise InputError(
                f"`devices={devices!r}` is not a number of replicas; use an int >= 1, of which each takes the IPUs "
                "that its blocks name."
            )
        return number

    @staticmethod
    @override
    def get_parallel_devices(devices: int | str | list[int]) -> list[torch.device]:
        """Return the host's CPU once for each replica."""
        return [torch.device("cpu")] * IPUAccelerator.parse_devices(devices)

    @staticmethod
    @override
    def name() -> str:
        return "ipu"
