"""The post-processing functions of the QA examples of transformers."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.answers.answer_set import Answers
from portico.mrc.answers.beam_search import BeamPostProcessor
from portico.mrc.answers.offsets import Features
from portico.mrc.answers.post_processor import SpanPostProcessor
from portico.mrc.datasets.examples import Examples

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
    post_processor = SpanPostProcessor(
        examples,
        features,
        version_2_with_negative=version_2_with_negative,
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
        null_score_diff_threshold=null_score_diff_threshold,
        ties="hf",
    )
    return _answered(post_processor, examples, features, predictions, output_dir, prefix, log_level).predictions


def postprocess_qa_predictions_with_beam_search(
    examples: Examples,
    features: Features,
    predictions: Sequence[npt.ArrayLike],
    version_2_with_negative: bool = False,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    start_n_top: int = 5,
    end_n_top: int = 5,
    output_dir: str | Path | None = None,
    prefix: str | None = None,
    log_level: int | None = None,
) -> tuple[dict[str, str], dict[str, float] | None]:
    """Return the answers of the beam-search QA example of transformers and the scores of "no answer", by ``id``.

    Args:
        examples: The examples.
        features: Their evaluation features.
        predictions: The five outputs of a beam-search head; see `BestPairs`.
        version_2_with_negative: Whether scores of "no answer" are wanted; otherwise they are ``None``.
        n_best_size: Spans to keep of each example.
        max_answer_length: Longest answer, in tokens.
        start_n_top: Starts in each beam.
        end_n_top: Ends for each start.
        output_dir: Where to write the answers, n-best lists and null odds; ``None`` writes nothing.
        prefix: What the file names begin with.
        log_level: From which level this module's messages are shown; ``None`` leaves it as it is.

    Raises:
        InputError: As in `BeamPostProcessor`, or if the beams are of another size.
    """
    sizes = [np.shape(output)[-1] for output in predictions]
    if len(sizes) != 5 or sizes[:4] != [start_n_top, start_n_top, start_n_top * end_n_top, start_n_top * end_n_top]:
        raise InputError(
            f"`predictions` holds {len(sizes)} arrays of {sizes} columns, which are no beams of `start_n_top="
            f"{start_n_top}` and `end_n_top={end_n_top}`; set these two to the model's own."
        )
    post_processor = BeamPostProcessor(
        examples,
        features,
        version_2_with_negative=version_2_with_negative,
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
    )
    answers = _answered(post_processor, examples, features, predictions, output_dir, prefix, log_level)
    return answers.predictions, answers.null_odds


def _answered(
    post_processor: SpanPostProcessor | BeamPostProcessor,
    examples: Examples,
    features: Features,
    predictions: Sequence[npt.ArrayLike],
    output_dir: str | Path | None,
    prefix: str | None,
    log_level: int | None,
) -> Answers:
    """Post-process whole arrays and write the files."""
    if log_level is not None:
        logger.setLevel(log_level)
    post_processor.update_outputs([np.asarray(output) for output in predictions], np.arange(len(features)))
    logger.info("Post-processing %d examples cut into %d features.", len(examples), len(features))
    answers = post_processor.compute()
    if output_dir is not None:
        answers.write(output_dir, prefix)
    return answers
