"""Pages as files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from portico.mrc.report.html.comparison_page import comparison_page
from portico.mrc.report.html.explorer import MAX_MEGABYTES
from portico.mrc.report.html.run_page import run_page
from portico.mrc.report.record import RunRecord
from portico.mrc.report.results import QuestionResult

REPORT_PAGE = "report.html"
REPORT_RECORD = "report.json"


def write_report(path: str | Path, record: RunRecord, *, max_megabytes: float = MAX_MEGABYTES) -> None:
    """Write the report of a run: one HTML file that needs no network and no other file.

    Args:
        path: The file to write, UTF-8; its folder must exist.
        record: The run.
        max_megabytes: Room for the questions to read; those that find none are counted on the page.
    """
    _write(path, run_page(record, max_megabytes=max_megabytes))


def write_comparison(
    path: str | Path, first: RunRecord, second: RunRecord, *, max_megabytes: float = MAX_MEGABYTES
) -> None:
    """Write what changed from one run to another, as :func:`write_report` writes a report.

    Args:
        path: The file to write.
        first: The run to start from.
        second: The run to judge; its `results` are of the same questions in the same order, at least one.
        max_megabytes: Room for the questions to read.
    """
    _write(path, comparison_page(first, second, max_megabytes=max_megabytes))


def record_run(folder: str | Path, record: RunRecord) -> Path:
    """Write a run's report into its folder, and beside it what of the report no other file of the run holds.

    Returns:
        The page.
    """
    page = Path(folder, REPORT_PAGE)
    write_report(page, record)
    kept = {
        "title": record.title,
        "settings": record.settings,
        "sections": record.sections,
        "spans": _spans(record.results),
    }
    _write(Path(folder, REPORT_RECORD), json.dumps(kept, ensure_ascii=False, default=str))
    return page


def _spans(results: Sequence[QuestionResult]) -> dict[str, Any]:
    return {result.id: result.predicted_span for result in results}


def _write(path: str | Path, text: str) -> None:
    # A lone surrogate in a passage cannot be encoded; it is shown as a question mark rather than lose the report.
    Path(path).write_text(text, encoding="utf-8", errors="replace")
