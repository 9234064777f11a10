"""The evaluation of a reading comprehension model as one HTML page, and two evaluations compared."""

from portico.mrc.report.record import RunRecord
from portico.mrc.report.results import Candidate, QuestionResult, Scores
from portico.mrc.report.writing import record_run, write_comparison, write_report

__all__ = [
    "Candidate",
    "QuestionResult",
    "RunRecord",
    "Scores",
    "record_run",
    "write_comparison",
    "write_report",
]
