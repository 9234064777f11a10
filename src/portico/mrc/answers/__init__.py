"""Logits to answers, on numpy arrays: candidates of each feature, spans of each example, texts."""

from portico.mrc.answers.answer_set import Answers
from portico.mrc.answers.hf_example import postprocess_qa_predictions
from portico.mrc.answers.post_processor import SpanPostProcessor

__all__ = ["Answers", "SpanPostProcessor", "postprocess_qa_predictions"]
