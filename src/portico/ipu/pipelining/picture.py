"""A pipeline as a picture: what runs where, from left to right."""

from html import escape

from portico.ipu.pipelining.report import PlacementReport

_BOX_WIDTH, _BOX_HEIGHT, _GAP = 150, 52, 26
_TEXT_WIDTH = _BOX_WIDTH - 16
# Wider texts are squeezed, as fonts differ.
_MOST_CHARACTERS = 20


def pipeline_picture(report: PlacementReport) -> str:
    """Return the stages as SVG: a row for each IPU, a column for each stage, arrows between them.

    Args:
        report: The report of a placement.
    """
    rows = len(report.memory)
    width = len(report.stages) * (_BOX_WIDTH + _GAP) + 60
    height = rows * (_BOX_HEIGHT + _GAP)
    parts = [_row(one.ipu, one.share, width) for one in report.memory]
    for column, (ipu, names) in enumerate(report.stages):
        parts.append(_box(column, ipu, names))
        if column:
            parts.append(_arrow(column, report.stages[column - 1][0], ipu))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="The pipeline, stage by stage" '
        f'style="max-width:100%;font:12px system-ui,sans-serif">{"".join(parts)}</svg>'
    )


def _left(column: int) -> int:
    return 60 + column * (_BOX_WIDTH + _GAP)


def _top(ipu: int) -> int:
    return ipu * (_BOX_HEIGHT + _GAP)


def _row(ipu: int, share: float, width: int) -> str:
    top = _top(ipu)
    return (
        f'<rect x="0" y="{top}" width="{width}" height="{_BOX_HEIGHT}" fill="currentColor" opacity="0.06"/>'
        f'<text x="6" y="{top + 22}" fill="currentColor">IPU {ipu}</text>'
        f'<text x="6" y="{top + 40}" fill="currentColor" opacity="0.7">{share:.1%}</text>'
    )


def _box(column: int, ipu: int, names: list[str]) -> str:
    left, top = _left(column), _top(ipu)
    label = label_of(names)
    squeezed = f' textLength="{_TEXT_WIDTH}" lengthAdjust="spacingAndGlyphs"' if len(label) > _MOST_CHARACTERS else ""
    return (
        f'<rect x="{left}" y="{top}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" fill="none" '
        'stroke="currentColor"/>'
        f"<title>{escape(', '.join(names))}</title>"
        f'<text x="{left + 8}" y="{top + 22}" fill="currentColor">stage {column}</text>'
        f'<text x="{left + 8}" y="{top + 40}" fill="currentColor" opacity="0.7"{squeezed}>{escape(label)}</text>'
    )


def label_of(names: list[str]) -> str:
    """Return what a stage is called in its box: the end of its last name, as many whole parts of it as fit.

    Args:
        names: What runs in the stage.
    """
    before = "" if len(names) == 1 else "to "
    parts = names[-1].split(".")
    while len(parts) > 1 and len(before + ".".join(parts)) > _MOST_CHARACTERS:
        del parts[0]
    return before + ".".join(parts)


def _arrow(column: int, source: int, target: int) -> str:
    start_x, start_y = _left(column) - _GAP, _top(source) + _BOX_HEIGHT // 2
    end_x, end_y = _left(column), _top(target) + _BOX_HEIGHT // 2
    return (
        f'<path d="M{start_x} {start_y} L{end_x} {end_y}" stroke="currentColor" fill="none"/>'
        f'<circle cx="{end_x}" cy="{end_y}" r="3" fill="currentColor"/>'
    )
