"""Charts as HTML figures: an SVG that stretches with the page, with labels in HTML so that they keep their size."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from portico.report.page import macros, panels

Point = tuple[float, float]

# Relative width below which a range is rounding noise around one value.
_FLAT = 1e-9


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart, coloured by its CSS class; x values ascend, and ``dotted`` marks the points with dots."""

    label: str
    css_class: str
    points: Sequence[Point]
    dotted: bool = False


class Mark(NamedTuple):
    """A vertical line at ``x``, explained by ``label``."""

    label: str
    x: float


def line_chart(
    title: str, series: Sequence[Series], *, x_name: str = "step", x_from_zero: bool = True, marks: Sequence[Mark] = ()
) -> Markup:
    """Return a chart as an HTML figure, empty if no series has a point; other series without a point are left out.

    The x axis starts at zero or at the first point.
    """
    series = [line for line in series if line.points]
    if not series:
        return Markup()
    xs = [x for line in series for x, _ in line.points]
    values = [value for line in series for _, value in line.points]
    first, last = (0.0, max(1.0, *xs)) if x_from_zero else (min(xs), max(xs))
    if first == last:
        first, last = first - 0.5, last + 0.5
    # A y axis that starts at zero, unless all values are far from it, shows changes in their true proportion.
    bottom = 0.0 if 0 < min(values) < 0.6 * max(values) else min(values)
    frame = Frame((first, last), ticks(bottom, max(values)))
    # What the script of the charts shows at the cursor.
    data = [
        {"label": line.label, "points": [[float(f"{x:.6g}"), float(f"{value:.4g}")] for x, value in line.points]}
        for line in series
    ]
    return macros("charts.html.j2").line_chart(
        title,
        frame,
        lines=[(line, _line_paths(line, frame)) for line in series],
        marks=marks,
        x_name=x_name,
        summary=_summary(title, series, x_name, marks),
        data=json.dumps(data, separators=(",", ":")),
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes of a chart, mapped onto a drawing of 100 x 100 with y pointing down.

    The ends of the x range are not equal; the y ticks, values with a grid line, ascend from edge to edge.
    """

    x_range: tuple[float, float]
    y_ticks: list[float]

    def x(self, value: float) -> float:
        """Return the position of a value, 0 at the left and 100 at the right."""
        first, last = self.x_range
        return 100 * (value - first) / (last - first)

    def y(self, value: float) -> float:
        """Return the position of a value, 0 at the top and 100 at the bottom."""
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return 100 - 100 * (value - low) / (high - low)

    @property
    def x_labels(self) -> list[tuple[float, str]]:
        first, last = self.x_range
        # Rounding must not drop a tick on an edge.
        slack = 1e-9 * (last - first)
        shown = [tick for tick in ticks(first, last) if first - slack <= tick <= last + slack]
        return list(zip(map(self.x, shown), tick_labels(shown), strict=True))

    @property
    def y_labels(self) -> list[tuple[float, str]]:
        return list(zip(map(self.y, self.y_ticks), tick_labels(self.y_ticks), strict=True))


def curve(log_history: Sequence[Mapping[str, Any]], key: str) -> tuple[Point, ...]:
    """Return ``(step, value)`` of every entry that has a finite number under the key, steps ascending.

    Of several entries of one step the last counts: a final evaluation repeats the step of the last one in training.
    """
    values = {
        float(entry["step"]): float(entry[key])
        for entry in log_history
        if "step" in entry and isinstance(entry.get(key), int | float) and math.isfinite(entry[key])
    }
    return tuple(sorted(values.items()))


def draw_training_charts(log_history: Sequence[Mapping[str, Any]], scores: Mapping[str, Sequence[Series]]) -> Markup:
    """Return charts of the loss, of further series by title, and of the learning rate of a training."""
    charts: dict[str, Sequence[Series]] = {
        "Loss": [
            Series("training", "first", curve(log_history, "loss")),
            Series("evaluation", "second", curve(log_history, "eval_loss"), dotted=True),
        ],
        **scores,
        "Learning rate": [Series("learning rate", "first", curve(log_history, "learning_rate"))],
    }
    return panels(*(line_chart(title, series) for title, series in charts.items()), small=True)


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Return about this many round numbers, evenly spaced from at or below ``low`` to at or above ``high``."""
    if high - low <= _FLAT * max(abs(low), abs(high)):
        low, high = low - abs(low or 1.0) / 2, high + abs(high or 1.0) / 2
    rough_step = (high - low) / (about - 1)
    magnitude = 10.0 ** math.floor(math.log10(rough_step))
    step = next(factor for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough_step * 0.8) * magnitude
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Return the numbers as text; very small or large ones share one power of ten."""
    largest = max(abs(value) for value in values)
    if 0.01 <= largest < 1e5:
        return [f"{value:,.4g}" if abs(value) < 1e3 else f"{value:,.0f}" for value in values]
    exponent = math.floor(math.log10(largest))
    return [f"{value / 10.0**exponent:.3g}e{exponent}" if value else "0" for value in values]


def _line_paths(line: Series, frame: Frame) -> dict[str, str]:
    places = [f"{frame.x(x):.2f} {frame.y(value):.2f}" for x, value in line.points]
    paths = {"line": f"M{'L'.join(places)}"}
    if line.dotted or len(places) == 1:
        # A line of no length with round caps is a dot that stays round however the drawing is stretched.
        paths["dots"] = "".join(f"M{place}h0" for place in places)
    return paths


def _summary(title: str, series: Sequence[Series], x_name: str, marks: Iterable[Mark]) -> str:
    parts = []
    for line in series:
        (first_x, first), (last_x, last) = line.points[0], line.points[-1]
        parts.append(f"{line.label} from {first:.4g} at {x_name} {first_x:g} to {last:.4g} at {x_name} {last_x:g}")
    parts += [mark.label for mark in marks]
    return f"{title}: {'; '.join(parts)}"
