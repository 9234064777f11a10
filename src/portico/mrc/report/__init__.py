"""The evaluation of a reading comprehension model as an HTML page, and the comparison of two evaluations."""

from portico.mrc.report.comparison import write_comparison
from portico.mrc.report.results import Candidate, QuestionResult, RunRecord, Scores
from portico.mrc.report.run_page import record_run, write_report

__all__ = ["Candidate", "QuestionResult", "RunRecord", "Scores", "record_run", "write_comparison", "write_report"]
