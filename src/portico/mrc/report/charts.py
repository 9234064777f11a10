"""Line charts: an SVG that stretches with the page, its labels in HTML so that they keep their size."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from portico.mrc.report.history import Point
from portico.mrc.report.markup import escaped
from portico.mrc.report.ticks import tick_labels, ticks


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    Args:
        label: Its name in the legend.
        css_class: The name under which the style sheet colours it.
        points: `(step, value)`, steps ascending, at least one.
        dotted: Whether each point is marked.
    """

    label: str
    css_class: str
    points: tuple[Point, ...]
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class _Frame:
    """The ranges of a chart, steps from 0 on, mapped onto a drawing of 100 x 100 with y pointing down."""

    x_ticks: list[float]
    y_ticks: list[float]
    last_step: float

    def x(self, step: float) -> float:
        return 100 * step / self.last_step

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return 100 - 100 * (value - low) / (high - low)


def line_chart(title: str, series: Sequence[Series]) -> str:
    """Return a chart as an HTML figure, or nothing if no series has a point."""
    series = [line for line in series if line.points]
    if not series:
        return ""
    frame = _frame(series)
    lines = "".join(_path(line, frame) for line in series)
    grid = "".join(f'<path class="grid" d="M0 {frame.y(tick):.2f}H100"/>' for tick in frame.y_ticks)
    return (
        f'<figure class="chart"><figcaption><h3>{escaped(title)}</h3>{_legend(series)}</figcaption>'
        f'<div class="plot" role="img" aria-label="{escaped(_summary(title, series))}" '
        f'data-last-step="{frame.last_step:g}" data-series="{escaped(_data(series))}">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{grid}{lines}</svg>'
        f"{_labels(frame)}</div>"
        '<p class="readout" aria-hidden="true">steps</p></figure>'
    )


def _frame(series: Sequence[Series]) -> _Frame:
    steps = [step for line in series for step, _ in line.points]
    values = [value for line in series for _, value in line.points]
    last_step = max(1.0, *steps)
    x_ticks = [tick for tick in ticks(0, last_step) if tick <= last_step]
    # A chart that starts at zero unless all values lie far from it shows changes in their true proportion.
    bottom = 0.0 if 0 < min(values) < 0.6 * max(values) else min(values)
    return _Frame(x_ticks, ticks(bottom, max(values)), last_step)


def _path(line: Series, frame: _Frame) -> str:
    places = [f"{frame.x(step):.2f} {frame.y(value):.2f}" for step, value in line.points]
    path = f'<path class="line {line.css_class}" d="M{"L".join(places)}"/>'
    if not line.dotted and len(places) > 1:
        return path
    # A line of no length with round ends is a dot that stays round however the drawing is stretched.
    dots = "".join(f"M{place}h0" for place in places)
    return f'{path}<path class="dots {line.css_class}" d="{dots}"/>'


def _labels(frame: _Frame) -> str:
    y = "".join(
        f'<span class="y" style="top:{frame.y(tick):.2f}%">{label}</span>'
        for tick, label in zip(frame.y_ticks, tick_labels(frame.y_ticks), strict=True)
    )
    x = "".join(
        f'<span class="x" style="left:{frame.x(tick):.2f}%">{label}</span>'
        for tick, label in zip(frame.x_ticks, tick_labels(frame.x_ticks), strict=True)
    )
    return f'<div class="ticks" aria-hidden="true">{y}{x}</div>'


def _legend(series: Sequence[Series]) -> str:
    items = "".join(f'<li class="{line.css_class}">{escaped(line.label)}</li>' for line in series)
    return f'<ul class="legend">{items}</ul>'


def _summary(title: str, series: Sequence[Series]) -> str:
    parts = []
    for line in series:
        (first_step, first), (last_step, last) = line.points[0], line.points[-1]
        parts.append(f"{line.label} from {first:.4g} at step {first_step:g} to {last:.4g} at step {last_step:g}")
    return f"{title}: {'; '.join(parts)}"


def _data(series: Sequence[Series]) -> str:
    rows = [
        {"label": line.label, "points": [[step, float(f"{value:.4g}")] for step, value in line.points]}
        for line in series
    ]
    return json.dumps(rows, separators=(",", ":"))
