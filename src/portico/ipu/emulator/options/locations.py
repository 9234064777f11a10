"""Where tensors lie: on the chip or beside it."""

from typing import Any

from portico.ipu.emulator.options.group import OptionsGroup, require_count, require_type


class TensorLocationSettings(OptionsGroup):
    """Where the tensors of one kind lie; values are kept as 0 and 1, as ``poptorch`` keeps them."""

    def __init__(self) -> None:
        super().__init__()

    def _set_number(self, **values: Any) -> "TensorLocationSettings":
        self.set(**{name: int(value) for name, value in values.items()})
        return self

    def minElementsForOffChip(self, min_elements: int) -> "TensorLocationSettings":
        """Leave smaller tensors on the chip."""
        require_type(min_elements, int, "minElementsForOffChip")
        return self._set_number(minElementsForOffChip=min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> "TensorLocationSettings":
        """Leave smaller tensors whole."""
        require_type(min_elements, int, "minElementsForReplicatedTensorSharding")
        return self._set_number(minElementsForReplicatedTensorSharding=min_elements)

    def useOnChipStorage(self, use: bool) -> "TensorLocationSettings":
        """Keep them on the chip."""
        require_type(use, bool, "useOnChipStorage")
        return self._set_number(onChip=use)

    def useReplicatedTensorSharding(self, use: bool) -> "TensorLocationSettings":
        """Cut them over the replicas."""
        require_type(use, bool, "useReplicatedTensorSharding")
        return self._set_number(useReplicatedTensorSharding=use)

    def useIOTilesToLoad(self, use: bool) -> "TensorLocationSettings":
        """Load through input tiles."""
        require_type(use, bool, "useIOTilesToLoad")
        return self._set_number(useIOTilesToLoad=use)

    def useIOTilesToStore(self, use: bool) -> "TensorLocationSettings":
        """Store through output tiles."""
        require_type(use, bool, "useIOTilesToStore")
        return self._set_number(useIOTilesToStore=use)


class TensorLocationOptions(OptionsGroup):
    """Where activations, weights, optimizer state and accumulators lie; reached as ``options.TensorLocations``."""

    def __init__(self) -> None:
        super().__init__(
            location_activation={}, location_weight={}, location_optimizer={}, location_accumulator={}, num_io_tiles=0
        )

    def _set_location(self, name: str, location: TensorLocationSettings) -> "TensorLocationOptions":
        require_type(location, TensorLocationSettings, name)
        self.set(**{name: location.toDict()})
        return self

    def numIOTiles(self, num_tiles: int) -> "TensorLocationOptions":
        """Set the number of tiles for input and output."""
        require_count(num_tiles, "numIOTiles")
        self.set(num_io_tiles=num_tiles)
        return self

    def setActivationLocation(self, location: TensorLocationSettings) -> "TensorLocationOptions":
        """Place activations."""
        return self._set_location("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> "TensorLocationOptions":
        """Place weights."""
        return self._set_location("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> "TensorLocationOptions":
        """Place the optimizer's state."""
        return self._set_location("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> "TensorLocationOptions":
        """Place gradient accumulators."""
        return self._set_location("location_accumulator", location)
