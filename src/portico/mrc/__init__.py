"""Machine reading comprehension: examples, features, answers, metrics, report."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.mrc.answers import AnswerCalibration as AnswerCalibration
    from portico.mrc.answers import Answers as Answers
    from portico.mrc.answers import BeamPostProcessor as BeamPostProcessor
    from portico.mrc.answers import SpanPostProcessor as SpanPostProcessor
    from portico.mrc.answers import postprocess_qa_predictions as postprocess_qa_predictions
    from portico.mrc.answers import (
        postprocess_qa_predictions_with_beam_search as postprocess_qa_predictions_with_beam_search,
    )
    from portico.mrc.features.feature_set import FeatureSet as FeatureSet
    from portico.mrc.features.featurizer import Featurizer as Featurizer
    from portico.mrc.metrics import SquadV2 as SquadV2
    from portico.mrc.metrics import squad_metrics as squad_metrics
    from portico.mrc.post_processing import SpanPostProcessing as SpanPostProcessing
    from portico.mrc.post_processing import SquadMetrics as SquadMetrics
    from portico.mrc.reader import Answer as Answer
    from portico.mrc.reader import Reader as Reader
    from portico.mrc.squad import read_squad as read_squad
    from portico.mrc.trainer import MRCTrainer as MRCTrainer

_HOMES = {
    "Answer": "portico.mrc.reader",
    "AnswerCalibration": "portico.mrc.answers",
    "Answers": "portico.mrc.answers",
    "BeamPostProcessor": "portico.mrc.answers",
    "FeatureSet": "portico.mrc.features.feature_set",
    "Featurizer": "portico.mrc.features.featurizer",
    "MRCTrainer": "portico.mrc.trainer",
    "Reader": "portico.mrc.reader",
    "SpanPostProcessing": "portico.mrc.post_processing",
    "SpanPostProcessor": "portico.mrc.answers",
    "SquadMetrics": "portico.mrc.post_processing",
    "SquadV2": "portico.mrc.metrics",
    "postprocess_qa_predictions": "portico.mrc.answers",
    "postprocess_qa_predictions_with_beam_search": "portico.mrc.answers",
    "read_squad": "portico.mrc.squad",
    "squad_metrics": "portico.mrc.metrics",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
