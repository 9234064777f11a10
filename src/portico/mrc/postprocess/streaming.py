"""Post-processors that take the outputs of an evaluation batch by batch and return the answers.

Shape suffixes: B features of a batch, E examples, F features (windows), N ranked spans.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.arrays import Int64s
from portico.mrc.datasets.examples import Examples
from portico.mrc.postprocess.answers import Answers, BeamAnswers, Shortlist, add_literal_empty, choose
from portico.mrc.postprocess.calibration import AnswerCalibration, calibrate_probabilities
from portico.mrc.postprocess.ranking import (
    RankedSpans,
    ScoreDifference,
    answer_types,
    null_spans,
    passage_indices,
    rank_spans,
    span_probabilities,
)
from portico.mrc.postprocess.search import Candidates, CandidateSearch, Ties, TokenOrder
from portico.mrc.postprocess.token_offsets import LITERAL_EMPTY, ExampleColumns, Features, token_offsets

SpanSearch: TypeAlias = Literal["top", "exhaustive"]
"""Spans between the best starts and the best ends, or the best of all spans."""

logger = logging.getLogger(__name__)


# Rows searched at once: the search of 8 rows of 384 tokens takes 41 us a row, of 256 rows 12 us.
_ROWS_AT_ONCE = 256


class CandidateCollector:
    """Collects the candidates of each feature while an evaluation runs, in one process or several.

    It keeps about 260 bytes for each feature with 20 starts and ends in float32, however long its row is.
    """

    def __init__(self, examples: ExampleColumns, search: CandidateSearch) -> None:
        self._examples = examples
        self._search = search
        self.num_examples = len(examples.ids)
        self.num_features = len(search.offsets)
        self._parts: list[Candidates] = []
        # Batches of one width that are still to be searched, and their features.
        self._waiting: list[tuple[list[npt.NDArray[Any]], Int64s]] = []

    def update_outputs(self, outputs: Sequence[Any], feature_indices: npt.ArrayLike) -> None:
        """Take the outputs of the model for one batch, in the model's order.

        Args:
            outputs: Arrays with a row for each feature; see ``CandidateSearch``.
            feature_indices: Which feature each row is, ``int [B]``, in any order; of a feature that comes twice (a
                distributed sampler repeats some) the first counts.

        Raises:
            InputError: If a logit is not finite (found when enough rows have come to be searched), or outputs and
                features differ in number.
        """
        indices_B = np.asarray(feature_indices, np.int64)
        if isinstance(outputs, np.ndarray):
            raise InputError(
                f"The model returned a single array of shape {outputs.shape}, but start logits and end logits are "
                "needed; use a model with a question answering head."
            )
        num_rows = len(outputs[0]) if len(outputs) else 0
        if indices_B.shape != (num_rows,):
            raise InputError(
                f"Got logits for {num_rows} features, but {len(indices_B)} features; give the features that the model "
                "was evaluated on."
            )
        if num_rows and not 0 <= indices_B.min() <= indices_B.max() < self.num_features:
            raise InputError(
                f"Got logits for feature {indices_B.max()}, but there are only {self.num_features} features, counted "
                "from 0; give the features that the model was evaluated on."
            )
        if num_rows >= _ROWS_AT_ONCE or (num_rows and not self._parts):
            # Search the first batch at once: an error in the outputs then shows early.
            self._search_waiting()
            self._parts.append(self._search(outputs, indices_B))
        elif num_rows:
            self._wait([np.asarray(output) for output in outputs], indices_B)

    def _wait(self, arrays: list[npt.NDArray[Any]], indices_B: Int64s) -> None:
        """Keep a small batch until there are enough of its width to search."""
        if self._waiting:
            before = self._waiting[-1][0]
            if [(a.shape[1:], a.dtype) for a in arrays] != [(a.shape[1:], a.dtype) for a in before]:
                self._search_waiting()
        # Copied, since a model may use the memory of its outputs again.
        self._waiting.append(([array.copy() for array in arrays], indices_B))
        if sum(len(indices) for _, indices in self._waiting) >= _ROWS_AT_ONCE:
            self._search_waiting()

    def _search_waiting(self) -> None:
        if self._waiting:
            batches, indices = zip(*self._waiting, strict=True)
            self._waiting = []
            outputs = [np.concatenate(column) for column in zip(*batches, strict=True)]
            self._parts.append(self._search(outputs, np.concatenate(indices)))

    def merge(self, candidates: Candidates) -> None:
        self._parts.append(candidates)

    def candidates(self) -> Candidates:
        """Return what was collected, one row for each feature, in ascending order of the features."""
        self._search_waiting()
        if not self._parts:
            raise InputError(
                f"None of the {self.num_features} features got logits; evaluate the model on all of them before "
                "computing answers."
            )
        together = Candidates.concatenate(self._parts)
        self._parts = [together]
        if (np.diff(together.feature_index_F) > 0).all():
            return together
        # Distributed samplers pad the last batches with features that came before.
        return together[np.unique(together.feature_index_F, return_index=True)[1]]

    def _all_candidates(self) -> tuple[Candidates, Int64s]:
        """Return the candidates of all features, grouped by example, and the example of each, ``int64 [F]``."""
        candidates = self.candidates()
        if len(candidates) < self.num_features:
            missing = np.setdiff1d(np.arange(self.num_features), candidates.feature_index_F)
            raise InputError(
                f"{len(missing)} of {self.num_features} features got no logits, the first being feature "
                f"{missing[0]}; evaluate the model on all of them before computing answers."
            )
        example_F = self._search.offsets.example_index_F
        if (np.diff(example_F) >= 0).all():
            return candidates, example_F
        order_F = np.argsort(example_F, kind="stable")
        return candidates[order_F], example_F[order_F]

    def _contexts(self, ranked: RankedSpans, candidates: Candidates) -> Int64s:
        """Return the context of each span, ``int64 [N]``; 0 for the literal text "empty", which has none."""
        context_F = self._search.offsets.context_index_F[candidates.feature_index_F]
        if not context_F.any():
            return np.zeros(len(ranked.spans), np.int64)  # which takes no memory until it is written
        context_N = context_F[ranked.spans.place_N3[:, 0]]
        return np.where(ranked.spans.chars_N2[:, 0] == LITERAL_EMPTY, 0, context_N)

    def _shortlist(
        self, ranked: RankedSpans, candidates: Candidates, probability_N: npt.NDArray[np.float64]
    ) -> Shortlist:
        passages = self._examples.passages
        context_N = self._contexts(ranked, candidates)
        passage_N = context_N
        if passages is not None:
            passage_N = passage_indices(ranked.spans.chars_N2, ranked.example_N, passages)
        return Shortlist(self._examples, ranked, context_N, passage_N, probability_N)


class SpanPostProcessor(CandidateCollector):
    """Collects logits during evaluation and turns them into answers.

    Args:
        examples: The examples, of which ``id``, ``context`` (a string or a list of strings) and, where present,
            ``passage_candidates`` are read.
        features: Their evaluation features, from ``Featurizer.eval_features`` or in the form of the QA example of
            transformers.
        version_2_with_negative: Whether "no answer" (an empty text) can be predicted.
        n_best_size: Number of starts, ends and spans to consider.
        max_answer_length: Longest answer, in tokens.
        null_score_diff_threshold: "No answer" is predicted where its score exceeds the best span's by more than this.
        ties: ``"deterministic"`` prefers the lower of two tokens with equal logits, lists every text once, scores "no
            answer" at the token that is labelled with it, and uses the model's answer types. ``"hf"`` returns the
            answers of the QA example of transformers to the last bit: its order of equal logits, which depends on the
            processor, "no answer" at token 0, and the text "empty" where no span is legal.
        search: ``"exhaustive"`` finds the best of all spans, at several times the cost.
        scorer: Rank spans by PrimeQA's score, which implies PrimeQA's selection of tokens and order of ties; "no
            answer" is then never predicted.
        calibration: Maps scores to probabilities.

    Raises:
        InputError: If an example has no features, two have the same ``id``, a feature belongs to no example, or
            options cannot be combined.
    """

    def __init__(
        self,
        examples: Examples,
        features: Features,
        *,
        version_2_with_negative: bool,
        n_best_size: int = 20,
        max_answer_length: int = 30,
        null_score_diff_threshold: float = 0.0,
        ties: Ties = "deterministic",
        search: SpanSearch = "top",
        scorer: ScoreDifference | None = None,
        calibration: AnswerCalibration | None = None,
    ) -> None:
        if math.isnan(null_score_diff_threshold):
            raise InputError(
                "`null_score_diff_threshold=nan` is invalid; set it to a number, or to infinity to always answer."
            )
        self._version_2_with_negative = version_2_with_negative and scorer is None
        self._null_score_diff_threshold = null_score_diff_threshold
        self._ties = ties
        self._scorer = scorer
        self._calibration = calibration
        # The rules of transformers and PrimeQA are reproduced as they are; portico's own may be improved.
        self._own_rules = ties == "deterministic" and scorer is None
        if search != "top" and not (search == "exhaustive" and self._own_rules):
            raise InputError(
                f"`search={search}` cannot be used; set it to top, or to exhaustive where spans are ranked by "
                "portico's rules and not by the rules of transformers or PrimeQA."
            )
        columns = ExampleColumns(examples)
        method: TokenOrder | Literal["exhaustive"] = ties if scorer is None else "primeqa"
        if search == "exhaustive":
            method = "exhaustive"
        offsets = token_offsets(features, columns.ids)
        super().__init__(columns, CandidateSearch(offsets, n_best_size, max_answer_length, method))

    def update(
        self,
        start_logits: npt.ArrayLike,
        end_logits: npt.ArrayLike,
        feature_indices: npt.ArrayLike,
        type_logits: npt.ArrayLike | None = None,
    ) -> None:
        """Take the logits of one batch, ``float [B, L]``, and optionally of the answer types, ``float [B, 5]``.

        For the indices and for errors see ``update_outputs``.
        """
        types = [] if type_logits is None else [type_logits]
        self.update_outputs((start_logits, end_logits, *types), feature_indices)

    def compute(self) -> Answers:
        """Return the answers of all examples; raise ``InputError`` if a feature got no logits."""
        candidates, example_F = self._all_candidates()
        nulls = null_spans(candidates, example_F) if self._version_2_with_negative else None
        examples = self._examples if self._own_rules else None
        ranked = rank_spans(candidates, self._search, nulls, scorer=self._scorer, distinct=examples)
        literal_E = None
        if self._ties == "hf":
            ranked, literal_E = add_literal_empty(ranked)
        used_types = slice(None if self._own_rules else 0)  # neither transformers nor PrimeQA's span records use types
        type_E = answer_types(candidates.type_logits_FK[:, used_types], example_F)
        choice = choose(ranked, nulls, self._null_score_diff_threshold, type_E)
        # In utils_qa.py the text "empty" has Python floats as scores, which make the array of logits float64.
        answers = Answers(self._shortlist(ranked, candidates, span_probabilities(ranked, literal_E)), choice)
        if self._calibration is not None and self._ties != "hf":
            calibrated_N = calibrate_probabilities(answers, self._calibration)
            answers.shortlist = replace(answers.shortlist, probability_N=calibrated_N)
        return answers


class BeamPostProcessor(CandidateCollector):
    """Collects the beams of a beam-search head during evaluation and turns them into answers.

    For the arguments see ``SpanPostProcessor``, with two differences: ``version_2_with_negative`` says whether to
    return scores of "no answer", and ``n_best_size`` is the number of spans to keep of each example.

    Raises:
        InputError: If an example has no features, two have the same ``id``, or a feature belongs to no example.
    """

    def __init__(
        self,
        examples: Examples,
        features: Features,
        *,
        version_2_with_negative: bool,
        n_best_size: int = 20,
        max_answer_length: int = 30,
    ) -> None:
        self._version_2_with_negative = version_2_with_negative
        columns = ExampleColumns(examples)
        offsets = token_offsets(features, columns.ids)
        super().__init__(columns, CandidateSearch(offsets, n_best_size, max_answer_length, "beam_search"))

    def compute(self) -> BeamAnswers:
        """Return the answers of all examples; raise ``InputError`` if a feature got no outputs."""
        candidates, example_F = self._all_candidates()
        ranked = rank_spans(candidates, self._search)
        choice = choose(ranked, None, np.inf, answer_types(candidates.type_logits_FK, example_F))
        if self._version_2_with_negative:
            choice = replace(choice, null_odds_E=null_spans(candidates, example_F).score_N.astype(np.float64))
        return BeamAnswers(self._shortlist(ranked, candidates, span_probabilities(ranked)), choice)


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

    Source: ``examples/pytorch/question-answering/utils_qa.py`` of transformers, function of the same name.

    ``predictions`` are the start logits and end logits of all features in order, ``float [F, L]`` each. The answers
    are written into ``output_dir``, unless it is ``None``, by ``Answers.write`` with this ``prefix``. This module's
    logger gets the ``log_level``, unless it is ``None``. For the other arguments see ``SpanPostProcessor``.

    Raises:
        InputError: As in ``SpanPostProcessor``, or if predictions and features differ in number.
    """
    if len(predictions) != 2:
        raise InputError(
            f"`predictions` holds {len(predictions)} arrays; expected a pair of start logits and end logits."
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
    return _answers_of(post_processor, predictions, output_dir, prefix, log_level).predictions


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

    Source: ``examples/pytorch/question-answering/utils_qa.py`` of transformers, function of the same name.

    ``predictions`` are the five outputs of a beam-search head (see ``CandidateSearch``), ``start_n_top`` starts in
    each beam and ``end_n_top`` ends for each start. For the other arguments see ``BeamPostProcessor`` and
    ``postprocess_qa_predictions``. Without ``version_2_with_negative`` the scores are ``None``.

    Raises:
        InputError: As in ``BeamPostProcessor``, or if the beams are of another size.
    """
    sizes = [np.shape(output)[-1] for output in predictions]
    if len(sizes) != 5 or sizes[:4] != [start_n_top, start_n_top, start_n_top * end_n_top, start_n_top * end_n_top]:
        raise InputError(
            f"`predictions` holds {len(sizes)} arrays of {sizes} columns, which does not match `start_n_top="
            f"{start_n_top}` and `end_n_top={end_n_top}`; set these two to the values of the model."
        )
    post_processor = BeamPostProcessor(
        examples,
        features,
        version_2_with_negative=version_2_with_negative,
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
    )
    answers = _answers_of(post_processor, predictions, output_dir, prefix, log_level)
    return answers.predictions, answers.null_odds


def _answers_of(
    post_processor: SpanPostProcessor | BeamPostProcessor,
    predictions: Sequence[npt.ArrayLike],
    output_dir: str | Path | None,
    prefix: str | None,
    log_level: int | None,
) -> Answers:
    if log_level is not None:
        logger.setLevel(log_level)
    num_features = post_processor.num_features
    post_processor.update_outputs([np.asarray(output) for output in predictions], np.arange(num_features))
    logger.info("Post-processing %d examples split into %d features.", post_processor.num_examples, num_features)
    answers = post_processor.compute()
    if output_dir is not None:
        answers.write(output_dir, prefix)
    return answers
