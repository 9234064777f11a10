"""Logits to answers: the rules of the QA example of transformers, computed on arrays.

Shape suffixes: E examples, F features (windows), N ranked spans.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.answers.answer_set import Answers
from portico.mrc.answers.choice import best_spans, best_spans_or_null, with_literal_empty
from portico.mrc.answers.offsets import token_offsets
from portico.mrc.answers.probabilities import span_probabilities
from portico.mrc.answers.ranking import null_spans, rank_spans
from portico.mrc.answers.spans import Candidates, SpanCollector
from portico.mrc.answers.top_tokens import Ties
from portico.mrc.columns import Examples, column
from portico.mrc.features.feature_set import FeatureSet

__all__ = ["Answers", "SpanPostProcessor", "postprocess_qa_predictions"]

logger = logging.getLogger(__name__)


class SpanPostProcessor:
    """Collects logits during evaluation and turns them into answers.

    Args:
        examples: The examples, of which ``id`` and ``context`` are read.
        features: Their evaluation features, from `Featurizer.eval_features` or as the QA example of transformers
            makes them.
        version_2_with_negative: Whether "no answer" (an empty text) can be predicted.
        n_best_size: Starts, ends and spans that are looked at.
        max_answer_length: Longest answer, in tokens.
        null_score_diff_threshold: "No answer" is predicted where its score exceeds the best span's by more than this.
        ties: ``"deterministic"`` prefers the lower of two tokens with equal logits. ``"hf"`` gives the answers of the
            QA example of transformers to the last bit: its order of equal logits, which depends on the processor, and
            the text "empty" where no span is legal.

    Raises:
        InputError: If an example has no features, two have the same ``id``, or a feature belongs to none.
    """

    def __init__(
        self,
        examples: Examples,
        features: FeatureSet | Sequence[Mapping[str, Any]],
        *,
        version_2_with_negative: bool,
        n_best_size: int = 20,
        max_answer_length: int = 30,
        null_score_diff_threshold: float = 0.0,
        ties: Ties = "deterministic",
    ) -> None:
        self._example_ids: list[str] = column(examples, "id")
        self._contexts: list[str] = column(examples, "context")
        _check_unique(self._example_ids)
        self._offsets = token_offsets(features, self._example_ids)
        self._check_every_example_has_features()
        self._version_2_with_negative = version_2_with_negative
        self._n_best_size = n_best_size
        self._max_answer_length = max_answer_length
        self._null_score_diff_threshold = null_score_diff_threshold
        self._ties: Ties = ties
        lengths_F = np.diff(self._offsets.row_starts)
        self._collector = SpanCollector(len(lengths_F), int(lengths_F.max()), n_best_size=n_best_size, ties=ties)

    def update(self, start_logits: npt.ArrayLike, end_logits: npt.ArrayLike, feature_indices: npt.ArrayLike) -> None:
        """Take the logits of one batch; see `SpanCollector.update`."""
        self._collector.update(np.asarray(start_logits), np.asarray(end_logits), np.asarray(feature_indices))

    def candidates(self) -> Candidates:
        """Return what was kept so far, for another process to `merge`."""
        return self._collector.candidates()

    def merge(self, candidates: Candidates) -> None:
        """Take what another process kept."""
        self._collector.merge(candidates)

    def compute(self) -> Answers:
        """Return the answers of all examples.

        Raises:
            InputError: If a feature got no logits.
        """
        candidates = self._grouped_candidates()
        example_F = self._offsets.example_index_F[candidates.feature_index_F]
        nulls = null_spans(candidates, example_F) if self._version_2_with_negative else None
        ranked = rank_spans(
            candidates,
            self._offsets,
            nulls,
            n_best_size=self._n_best_size,
            max_answer_length=self._max_answer_length,
        )
        literal_E = np.zeros(len(self._example_ids), np.bool_)
        if self._ties == "hf":
            ranked, literal_E = with_literal_empty(ranked)
        # transformers puts the zeros of its text "empty" beside the logits as Python floats, which makes them float64.
        probability_N = span_probabilities(ranked, wide_E=literal_E)
        if nulls is None:
            chosen_E, null_odds_E = best_spans(ranked), None
        else:
            chosen_E, null_odds_E = best_spans_or_null(ranked, nulls, self._null_score_diff_threshold)
        return Answers(self._example_ids, self._contexts, ranked, probability_N, chosen_E, null_odds_E)

    def _grouped_candidates(self) -> Candidates:
        """Return the candidates of all features in the order of their examples."""
        candidates = self._collector.candidates()
        num_features = len(self._offsets.example_index_F)
        missing = np.setdiff1d(np.arange(num_features), candidates.feature_index_F)
        if len(missing):
            raise InputError(
                f"{len(missing)} of {num_features} features got no logits, feature {missing[0]} being the first; "
                f"evaluate the model on all of them before asking for answers."
            )
        return candidates[np.argsort(self._offsets.example_index_F, kind="stable")]

    def _check_every_example_has_features(self) -> None:
        counts_E = np.bincount(self._offsets.example_index_F, minlength=len(self._example_ids))
        without = np.flatnonzero(counts_E == 0)
        if len(without):
            raise InputError(
                f"{len(without)} of {len(counts_E)} examples have no features, {self._example_ids[without[0]]!r} "
                f"being the first; give the features of just these examples, and cut examples rather than features."
            )


def postprocess_qa_predictions(
    examples: Examples,
    features: FeatureSet | Sequence[Mapping[str, Any]],
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
    if log_level is not None:
        logger.setLevel(log_level)
    start_logits, end_logits = (np.asarray(logits) for logits in predictions)
    if len(start_logits) != len(features):
        raise InputError(
            f"There are logits for {len(start_logits)} features, but {len(features)} features; give the features "
            f"that the model was evaluated on."
        )
    logger.info("Post-processing %d examples cut into %d features.", len(examples), len(features))
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
    answers = post_processor.compute()
    if output_dir is not None:
        answers.write(output_dir, prefix)
    return answers.predictions


def _check_unique(example_ids: Sequence[str]) -> None:
    repeated = [example_id for example_id, count in Counter(example_ids).items() if count > 1]
    if repeated:
        raise InputError(
            f"{len(repeated)} example ids occur more than once, {repeated[0]!r} for one; answers are told apart by "
            f"id, so give every example its own."
        )
