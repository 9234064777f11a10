"""Line charts: an SVG that stretches with the page, its labels in HTML so that they keep their size."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from portico.mrc.report.figures.history import Point
from portico.mrc.report.html.frame import Frame
from portico.mrc.report.html.markup import escaped
from portico.mrc.report.html.ticks import ticks


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    Args:
        label: Its name in the legend.
        css_class: The name under which the style sheet colours it.
        points: `(x, y)`, x ascending, at least one.
        dotted: Whether each point is marked.
    """

    label: str
    css_class: str
    points: tuple[Point, ...]
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A line from top to bottom.

    Args:
        label: What is there.
        x: Where it is.
    """

    label: str
    x: float


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str = "step",
    x_from_zero: bool = True,
    marks: Sequence[Mark] = (),
) -> str:
    """Return a chart as an HTML figure, or nothing if no series has a point.

    Args:
        title: Its heading.
        series: Its lines; those without a point are left out.
        x_name: What is counted from left to right.
        x_from_zero: Whether the left edge is zero and not the first point.
        marks: Places to point out.
    """
    series = [line for line in series if line.points]
    if not series:
        return ""
    frame = _frame(series, x_from_zero)
    first, last = frame.x_range
    lines = "".join(_path(line, frame) for line in series)
    upright = "".join(f'<path class="mark" d="M{frame.x(mark.x):.2f} 0V100"/>' for mark in marks)
    return (
        f'<figure class="chart"><figcaption><h3>{escaped(title)}</h3>{_legend(series, marks)}</figcaption>'
        f'<div class="plot" role="img" aria-label="{escaped(_summary(title, series, x_name, marks))}" '
        f'data-x-name="{escaped(x_name)}" data-first="{first:g}" data-last="{last:g}" '
        f'data-series="{escaped(_data(series))}">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{frame.grid()}{upright}{lines}'
        f"</svg>{frame.labels()}</div>"
        f'<p class="readout" aria-hidden="true">{escaped(x_name)}</p></figure>'
    )


def _frame(series: Sequence[Series], x_from_zero: bool) -> Frame:
    xs = [x for line in series for x, _ in line.points]
    values = [value for line in series for _, value in line.points]
    x_range = (0.0, max(1.0, *xs)) if x_from_zero else _widened(min(xs), max(xs))
    # A chart that starts at zero unless all values lie far from it shows changes in their true proportion.
    bottom = 0.0 if 0 < min(values) < 0.6 * max(values) else min(values)
    return Frame(x_range, ticks(bottom, max(values)))


def _widened(first: float, last: float) -> tuple[float, float]:
    return (first, last) if first < last else (first - 0.5, last + 0.5)


def _path(line: Series, frame: Frame) -> str:
    places = [f"{frame.x(x):.2f} {frame.y(value):.2f}" for x, value in line.points]
    path = f'<path class="line {line.css_class}" d="M{"L".join(places)}"/>'
    if not line.dotted and len(places) > 1:
        return path
    # A line of no length with round ends is a dot that stays round however the drawing is stretched.
    dots = "".join(f"M{place}h0" for place in places)
    return f'{path}<path class="dots {line.css_class}" d="{dots}"/>'


def _legend(series: Sequence[Series], marks: Sequence[Mark]) -> str:
    items = "".join(f'<li class="{line.css_class}">{escaped(line.label)}</li>' for line in series)
    items += "".join(f'<li class="upright">{escaped(mark.label)}</li>' for mark in marks)
    return f'<ul class="legend">{items}</ul>'


def _summary(title: str, series: Sequence[Series], x_name: str, marks: Sequence[Mark]) -> str:
    parts = []
    for line in series:
        (first_x, first), (last_x, last) = line.points[0], line.points[-1]
        parts.append(f"{line.label} from {first:.4g} at {x_name} {first_x:g} to {last:.4g} at {x_name} {last_x:g}")
    parts += [mark.label for mark in marks]
    return f"{title}: {'; '.join(parts)}"


def _data(series: Sequence[Series]) -> str:
    rows = [
        {"label": line.label, "points": [[float(f"{x:.6g}"), float(f"{value:.4g}")] for x, value in line.points]}
        for line in series
    ]
    return json.dumps(rows, separators=(",", ":"))
