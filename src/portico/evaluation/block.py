"""Memory that grows where it lies."""

import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

# Elsewhere a map cannot grow, and is copied instead.
_GROWS_IN_PLACE = sys.platform == "linux"


class Block:
    """Bytes in a memory map of their own.

    A map grows by moving pages and not bytes, and its pages cost nothing until they are written. An array can do
    neither: to grow it means to have it twice for a while. The pages go back to the system with the last view.

    Args:
        num_bytes: Room to begin with.
    """

    def __init__(self, num_bytes: int) -> None:
        self._map = _new_map(num_bytes)

    def __len__(self) -> int:
        return len(self._map)

    def view(self, dtype: "np.dtype[Any]", num_values: int) -> npt.NDArray[Any]:
        """Return the first ``num_values`` values; :meth:`resize` fails while a view is alive."""
        return np.frombuffer(self._map, dtype, num_values)

    def resize(self, num_bytes: int) -> None:
        """Grow or shrink to ``num_bytes``, at least one; what fits stays."""
        num_bytes = max(1, num_bytes)
        if num_bytes == len(self._map):
            return
        if _GROWS_IN_PLACE:
            self._map.resize(num_bytes)
            return
        kept = min(num_bytes, len(self._map))
        old, self._map = self._map, _new_map(num_bytes)
        self._map[:kept] = old[:kept]


def _new_map(num_bytes: int) -> mmap.mmap:
    num_bytes = max(1, num_bytes)
    if _GROWS_IN_PLACE:
        # A shared map, which is the default, could not be written beyond its first length.
        return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, num_bytes)
