"""``MultiConv``: convolutions that a device runs at the same time."""

from collections.abc import Iterable
from enum import Enum
from typing import Any, Self

import torch

from portico.ipu.emulator.options.group import require_type


class MultiConvPartialsType(Enum):
    """Format of partial sums."""

    Float = "float"
    Half = "half"


class MultiConvPlanType(Enum):
    """Whether convolutions share the tiles or take turns."""

    Parallel = "parallel"
    Serial = "serial"


class MultiConv:
    """The convolutions inside run at the same time on a device; what they compute stays the same.

    Attributes:
        settings: What was asked for, by name, which changes no number here.
    """

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def availableMemoryProportions(self, value: float | Iterable[float]) -> Self:
        """Store the share of memory of all convolutions, or of each."""
        shares = [value] if isinstance(value, int | float) else list(value)
        for share in shares:
            require_type(share, (int, float), "availableMemoryProportions")
        return self._set(available_memory_proportions=shares)

    def partialsTypes(self, value: Any) -> Self:
        """Store the format of partial sums of all convolutions, or of each.

        Raises:
            AssertionError: If it is none of :class:`MultiConvPartialsType`, ``torch.float`` and ``torch.half``.
        """
        kinds = list(value) if isinstance(value, list | tuple) else [value]
        for kind in kinds:
            if not isinstance(kind, MultiConvPartialsType) and kind not in (torch.float32, torch.float16):
                raise AssertionError(f"partialsTypes takes torch.float or torch.half; {kind!r} was given")
        return self._set(partials_types=kinds)

    def planType(self, value: MultiConvPlanType) -> Self:
        """Store how the convolutions share the tiles."""
        require_type(value, MultiConvPlanType, "planType")
        return self._set(plan_type=value)

    def perConvReservedTiles(self, value: int) -> Self:
        """Store how many tiles each convolution keeps."""
        require_type(value, int, "perConvReservedTiles")
        return self._set(per_conv_reserved_tiles=value)

    def cycleBackOff(self, value: float) -> Self:
        """Store how much slower than the fastest a plan may be."""
        require_type(value, (int, float), "cycleBackOff")
        return self._set(cycle_back_off=value)

    def enableConvDithering(self, value: bool | Iterable[bool]) -> Self:
        """Store whether first tiles are varied, for all convolutions or for each."""
        choices = [value] if isinstance(value, bool) else list(value)
        for choice in choices:
            require_type(choice, bool, "enableConvDithering")
        return self._set(enable_conv_dithering=choices)

    def _set(self, **settings: Any) -> Self:
        self.settings.update(settings)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        """End the group."""
