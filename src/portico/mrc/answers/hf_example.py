"""The post-processing function of the QA example of transformers."""

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.answers.offsets import Features
from portico.mrc.answers.post_processor import SpanPostProcessor
from portico.mrc.columns import Examples

logger = logging.getLogger(__name__)


def postprocess_qa_predictions(
    examples: Examples,
    features: Features,
    predictions: tuple[npt.ArrayLike, npt.ArrayLike],
    version_2_with_negative: bool = False,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_score_diff_threshold: float = 0.0,
    output_dir: str | Path | None = None,
    prefix: str | None = None,
    log_level: int | None = None,
) -> dict[str, str]:
    """Return the answers of the QA example of transformers, to the last bit: ``{id: text}``.

    Args:
        examples: The examples.
        features: Their evaluation features.
        predictions: Start logits and end logits of all features in order, ``float [F, L]`` each.
        version_2_with_negative: As in `SpanPostProcessor`.
        n_best_size: As in `SpanPostProcessor`.
        max_answer_length: As in `SpanPostProcessor`.
        null_score_diff_threshold: As in `SpanPostProcessor`.
        output_dir: Where to write the answers, n-best lists and null odds; ``None`` writes nothing.
        prefix: What the file names begin with.
        log_level: From which level this module's messages are shown; ``None`` leaves it as it is.

    Raises:
        InputError: As in `SpanPostProcessor`, or if predictions and features differ in number.
    """
    if len(predictions) != 2:
        raise InputError(
            f"`predictions` holds {len(predictions)} arrays, but must be a pair of start logits and end logits."
        )
    if log_level is not None:
        logger.setLevel(log_level)
    start_logits, end_logits = (np.asarray(logits) for logits in predictions)
    post_processor = SpanPostProcessor(
        examples,
        features,
        version_2_with_negative=version_2_with_negative,
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
        null_score_diff_threshold=null_score_diff_threshold,
        ties="hf",
    )
    post_processor.update(start_logits, end_logits, np.arange(len(features)))
    logger.info("Post-processing %d examples cut into %d features.", len(examples), len(features))
    answers = post_processor.compute()
    if output_dir is not None:
        answers.write(output_dir, prefix)
    return answers.predictions
