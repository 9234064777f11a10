"""How a reader reads."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from portico.errors import InputError
from portico.mrc.answers import AnswerCalibration
from portico.mrc.answers.post_processor import SpanSearch
from portico.settings import Rule, check_values

_LONGEST_WINDOW = 384
_POSITIVE = Rule((int,), least=1)
_RULES = {
    "max_seq_length": _POSITIVE,
    "doc_stride": Rule((int,), least=0),
    "max_question_length": Rule((int, type(None)), least=1),
    "max_answer_length": _POSITIVE,
    "n_best_size": _POSITIVE,
    "handle_impossible_answer": Rule((bool,)),
    "null_score_diff_threshold": Rule((float,)),
}


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """Settings of a reader and of its calls.

    Args:
        longest: Longest input of the model, in tokens; not to be set.
        max_seq_length: Tokens of a window, question and special tokens included.
        doc_stride: Tokens that two neighbouring windows share.
        max_question_length: Longer questions are cut to about this many tokens; ``None`` keeps them.
        max_answer_length: Longest answer, in tokens.
        n_best_size: Starts, ends and answers that are looked at.
        handle_impossible_answer: Whether "no answer" can be the answer.
        null_score_diff_threshold: "No answer" is the answer where its score exceeds the best span's by more than this.
        search: ``"exhaustive"`` looks for the best of all spans, at several times the cost.
    """

    longest: int
    max_seq_length: int
    doc_stride: int
    max_question_length: int | None = None
    max_answer_length: int = 30
    n_best_size: int = 20
    handle_impossible_answer: bool = False
    null_score_diff_threshold: float = 0.0
    search: SpanSearch = "top"

    @classmethod
    def of(cls, longest: int, calibration: AnswerCalibration | None, settings: Mapping[str, Any]) -> "ReadingSettings":
        """Return a reader's settings: what is not set follows from its model and calibration.

        Args:
            longest: Longest input of the model, in tokens.
            calibration: The calibration stored with the model.
            settings: What the user sets.

        Raises:
            InputError: If there is no such setting, or it cannot have this value.
        """
        window = min(settings.get("max_seq_length", _LONGEST_WINDOW), longest)
        threshold = None if calibration is None else calibration.null_score_diff_threshold
        defaults = cls(
            longest=longest,
            max_seq_length=window,
            doc_stride=window // 3,
            handle_impossible_answer=threshold is not None,
            null_score_diff_threshold=threshold or 0.0,
        )
        return defaults.changed(settings)

    def changed(self, settings: Mapping[str, Any]) -> "ReadingSettings":
        """Return the settings with some of them set otherwise.

        Raises:
            InputError: If there is no such setting, or it cannot have this value.
        """
        names = [field.name for field in fields(self) if field.name != "longest"]
        for name in settings:
            if name not in names:
                nearest = ", ".join(get_close_matches(name, names) or names)
                raise InputError(f"`{name}` is not a setting of a reader; the nearest are {nearest}.")
        check_values("reader", settings, _RULES)
        chosen = replace(self, **settings)
        check_window(chosen.max_seq_length, self.longest)
        return chosen


def check_window(max_seq_length: int, longest: int) -> None:
    """Refuse windows longer than a model takes.

    Raises:
        InputError: Says how long they may be.
    """
    if max_seq_length > longest:
        raise InputError(
            f"`max_seq_length={max_seq_length}` is more than the model takes ({longest} tokens); set it to {longest} "
            "or less."
        )
