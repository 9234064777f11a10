"""Answers to scores, by the rules of the data sets' official scripts."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.mrc.metrics.natural_questions import NqF1 as NqF1
    from portico.mrc.metrics.rouge import Rouge as Rouge
    from portico.mrc.metrics.scores import exact_match as exact_match
    from portico.mrc.metrics.scores import normalize_answer as normalize_answer
    from portico.mrc.metrics.scores import token_f1 as token_f1
    from portico.mrc.metrics.squad import AnswerTexts as AnswerTexts
    from portico.mrc.metrics.squad import Mlqa as Mlqa
    from portico.mrc.metrics.squad import Mrqa as Mrqa
    from portico.mrc.metrics.squad import SquadV1 as SquadV1
    from portico.mrc.metrics.squad import SquadV2 as SquadV2
    from portico.mrc.metrics.squad import squad_metrics as squad_metrics
    from portico.mrc.metrics.tydi import TydiF1 as TydiF1

_HOMES = {
    "AnswerTexts": "portico.mrc.metrics.squad",
    "Mlqa": "portico.mrc.metrics.squad",
    "Mrqa": "portico.mrc.metrics.squad",
    "NqF1": "portico.mrc.metrics.natural_questions",
    "Rouge": "portico.mrc.metrics.rouge",
    "SquadV1": "portico.mrc.metrics.squad",
    "SquadV2": "portico.mrc.metrics.squad",
    "TydiF1": "portico.mrc.metrics.tydi",
    "exact_match": "portico.mrc.metrics.scores",
    "normalize_answer": "portico.mrc.metrics.scores",
    "squad_metrics": "portico.mrc.metrics.squad",
    "token_f1": "portico.mrc.metrics.scores",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
