"""The memory that a stage uses at its peak: of the device if there is one, else of this process."""

import threading
import time

import psutil
import torch

_BETWEEN_LOOKS = 0.02  # seconds


def device_memory() -> int:
    """Return the memory that there is, in bytes."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return int(psutil.virtual_memory().total)


class PeakMemory:
    """Measures the peak since :meth:`begin`; memory of the process is looked at every 20 ms, by a thread."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._peak = 0
        self._is_over = False
        threading.Thread(target=self._look, daemon=True, name="portico-memory").start()

    def begin(self) -> None:
        self._peak = self._process.memory_info().rss
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return int(torch.cuda.max_memory_allocated())
        self._peak = max(self._peak, self._process.memory_info().rss)
        return self._peak

    def end(self) -> None:
        """End the thread."""
        self._is_over = True

    def _look(self) -> None:
        while not self._is_over:
            self._peak = max(self._peak, self._process.memory_info().rss)
            time.sleep(_BETWEEN_LOOKS)
