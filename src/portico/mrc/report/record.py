"""A run as the report shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from portico.mrc.report.results import QuestionResult


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What the report of a run is made of.

    Args:
        title: Heading of the page.
        name: What tells the run apart from others in a comparison: its folder.
        results: Every evaluated question; may be empty.
        metrics: Scores of the set, 0..100, under SQuAD's names with any prefix, besides loss and run times in
            seconds. Scores that are not there are computed from `results`.
        log_history: The entries a `TrainerState` collects; those with a `step` are drawn.
        settings: What the run was started with; mappings inside become one table each.
        sections: More HTML by heading, shown after the learning curves.
        missing: What the page cannot show, and why, each in a sentence.
    """

    title: str
    name: str = ""
    results: Sequence[QuestionResult]
    metrics: Mapping[str, float] = field(default_factory=dict)
    log_history: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
