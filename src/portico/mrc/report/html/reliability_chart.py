"""Confidence beside accuracy as a picture and a table."""

from collections.abc import Sequence

from portico.mrc.report.figures.calibration import Calibration, ConfidenceBin
from portico.mrc.report.html.frame import Frame

_PERCENT = Frame((0, 100), [0, 20, 40, 60, 80, 100])
# Room between two bars, in percent of the width.
_GAP = 0.6


def reliability_chart(measured: Calibration) -> str:
    """Return a reliability diagram as an HTML figure: a bar for each range of confidence, and its numbers below."""
    bars = "".join(map(_bar, measured.bins))
    whiskers = "".join(map(_whisker, measured.bins))
    return (
        '<figure class="chart"><figcaption><h3>Right as often as it is sure?</h3><ul class="legend">'
        '<li class="first">answered exactly, with its interval</li><li class="ideal">a perfect judge of itself</li>'
        "</ul></figcaption>"
        f'<div class="square" role="img" aria-label="Accuracy over confidence; the table below has the numbers">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{_PERCENT.grid()}{bars}'
        f'<path class="ideal" d="M0 100L100 0"/>{whiskers}</svg>{_PERCENT.labels()}</div>'
        f'<p class="readout">confidence, %</p>{_table(measured.bins)}</figure>'
    )


def _bar(one: ConfidenceBin) -> str:
    left, right, top = _PERCENT.x(100 * one.low) + _GAP, _PERCENT.x(100 * one.high) - _GAP, 100 * one.accuracy
    return f'<path class="column" d="M{left:.2f} 100V{_PERCENT.y(top):.2f}H{right:.2f}V100Z"/>'


def _whisker(one: ConfidenceBin) -> str:
    middle = _PERCENT.x(50 * (one.low + one.high))
    top, bottom = (_PERCENT.y(100 * end) for end in (one.interval.high, one.interval.low))
    return f'<path class="whisker" d="M{middle:.2f} {top:.2f}V{bottom:.2f}"/>'


def _table(bins: Sequence[ConfidenceBin]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{one.low:.0%} to {one.high:.0%}</th><td class="number">{one.count:,}</td>'
        f'<td class="number">{one.confidence:.1%}</td><td class="number">{one.accuracy:.1%}</td></tr>'
        for one in bins
    )
    return (
        "<details><summary>The numbers</summary>"
        '<div class="wide"><table><thead><tr><th scope="col">confidence</th>'
        '<th scope="col" class="number">questions</th><th scope="col" class="number">mean</th>'
        '<th scope="col" class="number">exact</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )
