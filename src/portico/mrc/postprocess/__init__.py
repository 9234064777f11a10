"""Logits to answers, on numpy arrays: candidates of each feature, spans of each example, texts."""

from portico.mrc.postprocess.answers import Answers
from portico.mrc.postprocess.calibration import AnswerCalibration
from portico.mrc.postprocess.streaming import (
    BeamPostProcessor,
    SpanPostProcessor,
    postprocess_qa_predictions,
    postprocess_qa_predictions_with_beam_search,
)

__all__ = [
    "AnswerCalibration",
    "Answers",
    "BeamPostProcessor",
    "SpanPostProcessor",
    "postprocess_qa_predictions",
    "postprocess_qa_predictions_with_beam_search",
]
