import math

# Relative width below which a range is rounding noise around one value.
_FLAT = 1e-9


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Return round numbers, evenly spaced, the first not above `low` and the last not below `high`.

    Args:
        low: Smallest value to cover.
        high: Largest value to cover, at least `low`.
        about: How many numbers are wanted, at least 2; the result may have a few more or fewer.
    """
    if high - low <= _FLAT * max(abs(low), abs(high)):
        low, high = low - abs(low or 1.0) / 2, high + abs(high or 1.0) / 2
    step = _round_step((high - low) / (about - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def tick_labels(values: list[float]) -> list[str]:
    """Return the numbers for reading; very small or large ones share one power of ten."""
    largest = max(abs(value) for value in values)
    if 0.01 <= largest < 1e5:
        return [f"{value:,.4g}" if abs(value) < 1e3 else f"{value:,.0f}" for value in values]
    exponent = math.floor(math.log10(largest))
    return [f"{value / 10.0**exponent:.3g}e{exponent}" if value else "0" for value in values]


def _round_step(step: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(step))
    return next(factor for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= step * 0.8) * magnitude
