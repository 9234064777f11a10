"""What a run leaves to read: a page for each source of questions, and a table on the screen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portico.mrc.experiment.data import Examples
from portico.mrc.experiment.summary import print_summary
from portico.mrc.question_results import question_results
from portico.mrc.report import RunRecord, record_run, write_report
from portico.mrc.trainer import MRCTrainer


def report_run(
    trainer: MRCTrainer,
    metrics: Mapping[str, float],
    settings: Mapping[str, Any],
    sections: Mapping[str, str],
    sources: Sequence[Examples],
    *,
    seconds: float,
) -> None:
    """Write the page of each source, and print the headline scores and where everything is; the first process does.

    Args:
        trainer: The trainer, whose last evaluation is reported.
        metrics: Metrics of training and of the final evaluation.
        settings: What the page shows of the settings, by group.
        sections: What it shows beside the answers: HTML by heading.
        sources: Examples of each source.
        seconds: Wall time of the whole run.
    """
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    answered = [trainer.answered] if len(sources) == 1 else trainer.answered
    records = [
        RunRecord(
            title="Machine reading comprehension",
            results=question_results(source.validation, one.answers),
            metrics=metrics,
            log_history=trainer.state.log_history,
            settings=settings,
            sections=sections,
        )
        for source, one in zip(sources, answered, strict=True)
    ]
    pages = _write_reports(folder, records)
    print_summary(
        metrics,
        title="Machine reading comprehension",
        files={"Report": ", ".join(map(str, pages)), "Everything else": str(folder)},
        seconds=seconds,
    )


def _write_reports(folder: Path, records: Sequence[RunRecord]) -> list[Path]:
    """Write a page for each source; the folder of a run with one source can be compared with others."""
    if len(records) == 1:
        return [record_run(folder, records[0])]
    pages = [folder / f"source_{number}" / "report.html" for number in range(len(records))]
    for page, record in zip(pages, records, strict=True):
        page.parent.mkdir(exist_ok=True)
        write_report(page, record)
    return pages
