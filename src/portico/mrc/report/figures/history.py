"""Curves out of the log history of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Point = tuple[float, float]


def curve(log_history: Sequence[Mapping[str, Any]], key: str) -> tuple[Point, ...]:
    """Return `(step, value)` of every entry that holds a finite number under the key, steps ascending.

    Of several entries of one step the last counts: a final evaluation repeats the step of the last one in training.
    """
    values = {
        float(entry["step"]): float(entry[key])
        for entry in log_history
        if "step" in entry and isinstance(entry.get(key), int | float) and math.isfinite(entry[key])
    }
    return tuple(sorted(values.items()))


def last_value(log_history: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the number last logged under the key, or None."""
    return next((float(entry[key]) for entry in reversed(log_history) if key in entry), None)
