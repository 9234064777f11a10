"""The evaluation of a reading comprehension model as one HTML page."""

from portico.mrc.report.page import write_report
from portico.mrc.report.results import QuestionResult

__all__ = ["QuestionResult", "write_report"]
