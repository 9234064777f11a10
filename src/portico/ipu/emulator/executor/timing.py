"""When the tensors of a call went to and from the devices, by the host's clock.

The emulator takes no time for transfers: it has all inputs when a call begins, and all outputs when it ends.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from portico.ipu.emulator.errors import Error

# Minimum, maximum and mean, in seconds.
Latency = tuple[float, float, float]


class CallTimes:
    """Times of the last call.

    Args:
        counts_cycles: Whether ``Options.logCycleCount`` is on.
    """

    # Of a Mk2, to make cycles of seconds.
    _CYCLES_PER_SECOND = 1.33e9

    def __init__(self, *, counts_cycles: bool) -> None:
        self._counts_cycles = counts_cycles
        self._times: tuple[float, float] | None = None

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure a call."""
        started = time.perf_counter()
        yield
        self._times = (started, time.perf_counter())

    def _last(self) -> tuple[float, float]:
        if self._times is None:
            raise Error("The model has not been run yet, so nothing was measured; call it first.")
        return self._times

    def cycleCount(self) -> int:
        """Return the cycles that an IPU makes in the time that the last call took.

        Raises:
            AssertionError: If cycles are not counted.
        """
        if not self._counts_cycles:
            raise AssertionError(
                "Cycle count logging is disabled; set poptorch.Options.logCycleCount(True) to enable it"
            )
        started, ended = self._last()
        return int((ended - started) * self._CYCLES_PER_SECOND)

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return when inputs were asked for and there, and outputs sent and there, in seconds."""
        started, ended = self._last()
        return {
            "input": [[started]],
            "input_complete": [[started]],
            "output": [[ended]],
            "output_complete": [[ended]],
        }

    def getLatency(self) -> Latency:
        """Return the time from inputs to outputs."""
        started, ended = self._last()
        return (ended - started,) * 3

    def getComputeLatency(self) -> Latency:
        """Return the time that computing took: all of it."""
        return self.getLatency()

    def getHostIpuLatency(self) -> Latency:
        """Return the time that inputs took to the devices: none."""
        self._last()
        return (0.0, 0.0, 0.0)

    def getIpuHostLatency(self) -> Latency:
        """Return the time that outputs took to the host: none."""
        return self.getHostIpuLatency()
