"""Answers to scores, by the rules of the data sets' official scripts."""

from portico.mrc.metrics.answer_texts import AnswerTexts, Mlqa, Mrqa, SquadV1
from portico.mrc.metrics.nq import NqF1
from portico.mrc.metrics.rouge import Rouge
from portico.mrc.metrics.scores import exact_match, normalize_answer, token_f1
from portico.mrc.metrics.squad import SquadV2, squad_metrics
from portico.mrc.metrics.tydi import TydiF1

__all__ = [
    "AnswerTexts",
    "Mlqa",
    "Mrqa",
    "NqF1",
    "Rouge",
    "SquadV1",
    "SquadV2",
    "TydiF1",
    "exact_match",
    "normalize_answer",
    "squad_metrics",
    "token_f1",
]
