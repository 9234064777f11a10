"""Two ways to do the same, timed by turns, in processor seconds of this process."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from record import record


class Ratio(NamedTuple):
    """How many times the first way takes of the second.

    Attributes:
        first: Median seconds of the first.
        second: Median seconds of the second.
        median: Median of the ratios of the rounds.
        least: The smallest of them.
        most: The largest of them.
    """

    first: float
    second: float
    median: float
    least: float
    most: float

    def __str__(self) -> str:
        seconds = f"{self.first:8.2f} s {self.second:8.2f} s"
        return f"{seconds}   {self.median:5.1f}x  ({self.least:.1f} to {self.most:.1f})"


def compare(name: str, first: Callable[[], object], second: Callable[[], object], rounds: int) -> Ratio:
    """Time a peer's function and ours by turns, so that a change of load meets both; record the ratios."""
    seconds = [(cpu_seconds(first), cpu_seconds(second)) for _ in range(rounds)]
    record(name, [ours / theirs for theirs, ours in seconds])
    ratios = [one / other for one, other in seconds]
    medians = (statistics.median(column) for column in zip(*seconds, strict=True))
    return Ratio(*medians, statistics.median(ratios), min(ratios), max(ratios))


def cpu_seconds(function: Callable[[], object]) -> float:
    """Return the processor seconds that a call takes."""
    start = time.process_time()
    function()
    return time.process_time() - start
