"""From logits to ranked answers, with numpy only: candidates of each window, spans of each example, answers and files.

:class:`~portico.mrc.postprocess.span_postprocessing.SpanPostProcessing` gives this to a trainer.
"""

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
