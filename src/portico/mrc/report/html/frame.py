"""The ranges of a chart and what is written along them."""

from dataclasses import dataclass

from portico.mrc.report.html.ticks import tick_labels, ticks


@dataclass(frozen=True, slots=True)
class Frame:
    """The ranges of a chart, mapped onto a drawing of 100 x 100 with y pointing down.

    Args:
        x_range: First and last x, not equal.
        y_ticks: Values that get a line across, ascending; the first and the last are the chart's edges.
    """

    x_range: tuple[float, float]
    y_ticks: list[float]

    def x(self, value: float) -> float:
        """Return where a value lies, 0 at the left and 100 at the right."""
        first, last = self.x_range
        return 100 * (value - first) / (last - first)

    def y(self, value: float) -> float:
        """Return where a value lies, 0 at the top and 100 at the bottom."""
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return 100 - 100 * (value - low) / (high - low)

    def grid(self) -> str:
        """Return the lines across as SVG paths."""
        return "".join(f'<path class="grid" d="M0 {self.y(tick):.2f}H100"/>' for tick in self.y_ticks)

    def labels(self) -> str:
        """Return the numbers beside the edges as HTML, so that they keep their size when the drawing stretches."""
        first, last = self.x_range
        # Rounding must not drop a tick on an edge.
        slack = 1e-9 * (last - first)
        x_ticks = [tick for tick in ticks(first, last) if first - slack <= tick <= last + slack]
        y = "".join(
            f'<span class="y" style="top:{self.y(tick):.2f}%">{label}</span>'
            for tick, label in zip(self.y_ticks, tick_labels(self.y_ticks), strict=True)
        )
        x = "".join(
            f'<span class="x" style="left:{self.x(tick):.2f}%">{label}</span>'
            for tick, label in zip(x_ticks, tick_labels(x_ticks), strict=True)
        )
        return f'<div class="ticks" aria-hidden="true">{y}{x}</div>'
