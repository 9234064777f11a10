"""Which of the checkpoints on disk are kept."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Point = TypeVar("Point")


@dataclass
class Retention:
    """Keeps the newest checkpoints; one that any rule keeps stays.

    Args:
        count: How many of the newest are kept; ``None`` leaves it to the age.
        age: Seconds for which each is kept; ``None`` leaves it to the count. Without both, all are kept.
        every: Seconds after which one that would be removed is kept for good, counted from the last that was.
    """

    count: int | None = 2
    age: float | None = None
    every: float | None = None
    _last_permanent: float = field(default_factory=time.time, init=False)
    _permanent: set[object] = field(default_factory=set, init=False)

    def superfluous(self, checkpoints: Sequence[tuple[Point, float]]) -> list[Point]:
        """Return those that no rule keeps.

        Args:
            checkpoints: Each with the time it was written, the oldest first.
        """
        if self.count is None and self.age is None:
            return []
        now = time.time()
        first_kept = len(checkpoints) - (self.count or 0)
        removed = []
        for index, (point, written) in enumerate(checkpoints):
            is_recent = index >= first_kept or (self.age is not None and now - written <= self.age)
            if not is_recent and not self._is_permanent(point, written):
                removed.append(point)
        return removed

    def _is_permanent(self, point: object, written: float) -> bool:
        if point not in self._permanent and self.every is not None and written - self._last_permanent > self.every:
            self._permanent.add(point)
            self._last_permanent = written
        return point in self._permanent
