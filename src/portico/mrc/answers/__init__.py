"""Logits to answers, on numpy arrays: candidates of each feature, spans of each example, texts."""

from portico.mrc.answers.answer_set import Answers
from portico.mrc.answers.beam_search import BeamPostProcessor
from portico.mrc.answers.calibration import AnswerCalibration
from portico.mrc.answers.hf_example import postprocess_qa_predictions, postprocess_qa_predictions_with_beam_search
from portico.mrc.answers.post_processor import SpanPostProcessor

__all__ = [
    "AnswerCalibration",
    "Answers",
    "BeamPostProcessor",
    "SpanPostProcessor",
    "postprocess_qa_predictions",
    "postprocess_qa_predictions_with_beam_search",
]
