"""What every post-processing does while an evaluation runs."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.arrays import Int64s
from portico.mrc.columns import Examples
from portico.mrc.postprocess.answers import (
    Answers,
    Choice,
    NBestRecord,
    Shortlist,
    choose,
    first_of_each_text,
    with_literal_empty,
)
from portico.mrc.postprocess.calibration import AnswerCalibration
from portico.mrc.postprocess.ranking import (
    RankedSpans,
    ScoreDifference,
    answer_types,
    null_spans,
    rank_spans,
    span_probabilities,
    sum_of_logits,
)
from portico.mrc.postprocess.search import (
    BestPairs,
    BestTokens,
    Candidates,
    ExhaustiveSearch,
    Search,
    Ties,
    TopTokenSearch,
    UnpaddedSearch,
)
from portico.mrc.postprocess.token_offsets import Features, Questions, TokenOffsets, passage_indices, token_offsets

Keep: TypeAlias = Callable[[Sequence[Any], Int64s], Candidates]
"""``f(outputs, feature_indices_B)``: what to keep of the outputs of a batch."""


class SpanCollector:
    """Keeps the candidates of each feature.

    That is about 260 bytes a feature for 20 starts and ends in float32, however long its row.

    Args:
        offsets: The features of the whole evaluation set.
        keep: Says what to keep of a batch.
    """

    def __init__(self, offsets: TokenOffsets, keep: Keep) -> None:
        self._offsets = offsets
        self._keep = keep
        self._num_features = len(offsets.example_index_F)
        self._parts: list[Candidates] = []

    def update(self, outputs: Sequence[Any], feature_indices: npt.ArrayLike) -> None:
        """Take one batch.

        Args:
            outputs: What the model gives, arrays of a row a feature.
            feature_indices: Which feature each row is, ``int [B]``, in any order; of a feature that comes twice (a
                distributed sampler repeats some) the first counts.

        Raises:
            InputError: If a logit is not finite, or the rows are more or fewer than the features they belong to.
        """
        indices_B = np.asarray(feature_indices, np.int64)
        if isinstance(outputs, np.ndarray):
            raise InputError(
                f"The model gave an array of shape {outputs.shape}, but answers need several, start logits and end "
                "logits first; use a model with a question answering head."
            )
        num_rows = len(outputs[0]) if len(outputs) else 0
        if indices_B.shape != (num_rows,):
            raise InputError(
                f"There are logits for {num_rows} features, but {len(indices_B)} features; give the features that the "
                f"model was evaluated on."
            )
        if num_rows and not 0 <= indices_B.min() <= indices_B.max() < self._num_features:
            raise InputError(
                f"There are logits for feature {indices_B.max()}, but {self._num_features} features, counted from 0; "
                f"give the features that the model was evaluated on."
            )
        if num_rows:
            self._parts.append(self._keep(outputs, indices_B))

    def merge(self, candidates: Candidates) -> None:
        """Take what the collector of another process kept."""
        self._parts.append(candidates)

    def candidates(self) -> Candidates:
        """Return what was kept, one row a feature, in ascending order of the features.

        Raises:
            InputError: If no logits came at all.
        """
        if not self._parts:
            raise InputError(
                f"None of the {self._num_features} features got logits; evaluate the model on all of them before "
                f"asking for answers."
            )
        together = Candidates.concatenate(self._parts)
        first_F = np.unique(together.feature_index_F, return_index=True)[1]
        return together[first_F]

    def complete(self) -> Candidates:
        """Return the candidates of all features, in the order of their examples.

        Raises:
            InputError: If a feature got no logits.
        """
        candidates = self.candidates()
        missing = np.setdiff1d(np.arange(self._num_features), candidates.feature_index_F)
        if len(missing):
            raise InputError(
                f"{len(missing)} of {self._num_features} features got no logits, feature {missing[0]} being the "
                f"first; evaluate the model on all of them before asking for answers."
            )
        return candidates[np.argsort(self._offsets.example_index_F, kind="stable")]


class OutputStream:
    """Takes the outputs of batches, in one process or several.

    Args:
        collector: Keeps what answers are made of.
    """

    def __init__(self, collector: SpanCollector) -> None:
        self._collector = collector

    def update_outputs(self, outputs: Sequence[Any], feature_indices: npt.ArrayLike) -> None:
        """Take the outputs of the model for one batch, in the order in which it gives them.

        Args:
            outputs: Arrays with a row a feature.
            feature_indices: Which feature each row is, ``int [B]``; see `SpanCollector.update`.

        Raises:
            InputError: See `SpanCollector.update`.
        """
        self._collector.update(outputs, feature_indices)

    def candidates(self) -> Candidates:
        """Return what was kept so far, for another process to `merge`."""
        return self._collector.candidates()

    def merge(self, candidates: Candidates) -> None:
        """Take what another process kept."""
        self._collector.merge(candidates)


SpanSearch: TypeAlias = Literal["top", "exhaustive"]
"""Spans between the best starts and the best ends, or the best of all spans."""


class SpanPostProcessor(OutputStream):
    """Collects logits during evaluation and turns them into answers.

    Args:
        examples: The examples, of which ``id``, ``context`` (a text or a list of texts) and, where they have them,
            ``passage_candidates`` are read.
        features: Their evaluation features, from `Featurizer.eval_features` or as the QA example of transformers
            makes them.
        version_2_with_negative: Whether "no answer" (an empty text) can be predicted.
        n_best_size: Starts, ends and spans that are looked at.
        max_answer_length: Longest answer, in tokens.
        null_score_diff_threshold: "No answer" is predicted where its score exceeds the best span's by more than this.
        ties: ``"deterministic"`` prefers the lower of two tokens with equal logits, lists every text once, and heeds
            the model's answer types. ``"hf"`` gives the answers of the QA example of transformers to the last bit: its
            order of equal logits, which depends on the processor, and the text "empty" where no span is legal.
        search: ``"exhaustive"`` looks for the best of all spans, at several times the cost.
        scorer: Rank spans by PrimeQA's score, whose tokens and ties are then PrimeQA's too; "no answer" is none of
            its answers.
        calibration: Turns scores into probabilities.

    Raises:
        InputError: If an example has no features, two have the same ``id``, a feature belongs to none, or options do
            not go together.
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
        self._questions = Questions(examples)
        ids = self._questions.ids
        self._offsets = token_offsets(features, ids)
        self._version_2_with_negative = version_2_with_negative and scorer is None
        self._n_best_size = n_best_size
        self._max_answer_length = max_answer_length
        self._null_score_diff_threshold = null_score_diff_threshold
        self._ties: Ties = ties
        self._scorer = scorer
        self._calibration = calibration or AnswerCalibration()
        longest = int(self._offsets.lengths_F.max())
        keep = BestTokens(self._search(search, longest), n_best_size, longest)
        super().__init__(SpanCollector(self._offsets, keep))

    @property
    def _is_own(self) -> bool:
        """Whether the rules are our own, and not those that another library's answers are to equal."""
        return self._ties == "deterministic" and self._scorer is None

    def _search(self, search: SpanSearch, longest: int) -> Search:
        if search == "exhaustive" and self._is_own:
            return ExhaustiveSearch(self._n_best_size, self._max_answer_length, self._offsets)
        if search != "top":
            raise InputError(
                f"`search={search}` cannot be used; set it to top, or to exhaustive where spans are ranked by our own "
                "rules and not by those of transformers or PrimeQA."
            )
        if self._scorer is not None:
            return UnpaddedSearch(self._n_best_size, self._offsets.lengths_F)
        return TopTokenSearch(self._n_best_size, longest, self._ties)

    def update(
        self,
        start_logits: npt.ArrayLike,
        end_logits: npt.ArrayLike,
        feature_indices: npt.ArrayLike,
        type_logits: npt.ArrayLike | None = None,
    ) -> None:
        """Take the logits of one batch.

        Args:
            start_logits: Score of each token as a start, ``float [B, L]``.
            end_logits: Score of each token as an end, ``float [B, L]``.
            feature_indices: Which feature each row is, ``int [B]``; see `SpanCollector.update`.
            type_logits: Score of each answer type, ``float [B, 5]``.

        Raises:
            InputError: See `SpanCollector.update`.
        """
        self.update_outputs(
            (start_logits, end_logits, *([] if type_logits is None else [type_logits])), feature_indices
        )

    def compute(self) -> Answers:
        """Return the answers of all examples.

        Raises:
            InputError: If a feature got no logits.
        """
        candidates = self._collector.complete()
        if self._scorer is not None:
            self._scorer.check(candidates)
        example_F = self._offsets.example_index_F[candidates.feature_index_F]
        nulls = null_spans(candidates, example_F) if self._version_2_with_negative else None
        ranked = rank_spans(
            candidates,
            self._offsets,
            nulls,
            n_best_size=self._n_best_size,
            max_answer_length=self._max_answer_length,
            scorer=sum_of_logits if self._scorer is None else self._scorer.of_spans,
            distinct=self._is_own,
        )
        shortlist = self._hf_shortlist(ranked) if self._ties == "hf" else self._shortlist(ranked, candidates)
        heeded = slice(None if self._is_own else 0)  # the others do not answer by type
        type_E = answer_types(candidates.type_logits_FK[:, heeded], example_F)
        return Answers(shortlist, choose(shortlist.ranked, nulls, self._null_score_diff_threshold, type_E))

    def _hf_shortlist(self, ranked: RankedSpans) -> Shortlist:
        ranked, literal_E = with_literal_empty(ranked)
        # transformers puts the zeros of its text "empty" beside the logits as Python floats, which makes them float64.
        probability_N = span_probabilities(ranked, literal_E)
        context_N = np.zeros(len(ranked.spans), np.int64)
        return Shortlist(self._questions.ids, self._questions.contexts, ranked, context_N, context_N, probability_N)

    def _shortlist(self, ranked: RankedSpans, candidates: Candidates) -> Shortlist:
        ids, contexts = self._questions.ids, self._questions.contexts
        row_N = ranked.spans.place_N3[:, 0]
        context_N = self._offsets.context_index_F[candidates.feature_index_F[row_N]]
        if self._is_own:
            first_N = first_of_each_text(contexts, ranked, context_N)
            ranked, context_N = ranked.select(first_N), context_N[first_N]
        passages, chars_N2 = self._questions.passages, ranked.spans.chars_N2
        passage_N = context_N if passages is None else passage_indices(chars_N2, ranked.example_N, passages)
        softmax_N = span_probabilities(ranked, temperature=self._calibration.temperature)
        return Shortlist(ids, contexts, ranked, context_N, passage_N, self._calibration.calibrated(softmax_N))


# The score of the empty text where no span is legal, and of each of its two halves.
_EMPTY: NBestRecord = {"text": "", "start_logit": -1e-6, "end_logit": -1e-6, "probability": 1.0}


class BeamAnswers(Answers):
    """The answers of readers that search with a beam, as their QA example in transformers gives them.

    The best span is always predicted; ``null_odds`` are the lowest score of "no answer".
    """

    logit_names = ("start_log_prob", "end_log_prob")
    nbest_of_no_span = (_EMPTY,)


class BeamPostProcessor(OutputStream):
    """Collects what beams found during evaluation and turns it into answers.

    Args:
        examples: The examples, of which ``id`` and ``context`` are read.
        features: Their evaluation features, with ``example_id`` and ``offset_mapping``.
        version_2_with_negative: Whether scores of "no answer" are wanted.
        n_best_size: Spans to keep of each example.
        max_answer_length: Longest answer, in tokens.

    Raises:
        InputError: If an example has no features, two have the same ``id``, or a feature belongs to none.
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
        self._questions = Questions(examples)
        self._offsets = token_offsets(features, self._questions.ids)
        self._version_2_with_negative = version_2_with_negative
        self._n_best_size, self._max_answer_length = n_best_size, max_answer_length
        keep = BestPairs(self._offsets, n_best_size, max_answer_length)
        super().__init__(SpanCollector(self._offsets, keep))

    def compute(self) -> BeamAnswers:
        """Return the answers of all examples.

        Raises:
            InputError: If a feature got no outputs.
        """
        candidates = self._collector.complete()
        example_F = self._offsets.example_index_F[candidates.feature_index_F]
        ranked = rank_spans(
            candidates,
            self._offsets,
            None,
            n_best_size=self._n_best_size,
            max_answer_length=self._max_answer_length,
        )
        zeros_N = np.zeros(len(ranked.spans), np.int64)
        probability_N = span_probabilities(ranked)
        shortlist = Shortlist(self._questions.ids, self._questions.contexts, ranked, zeros_N, zeros_N, probability_N)
        best_E = np.where(ranked.counts_E > 0, ranked.row_starts[:-1], -1)
        null_E = null_spans(candidates, example_F).score_N.astype(np.float64)
        type_E = answer_types(candidates.type_logits_FK, example_F)
        odds_E = null_E if self._version_2_with_negative else None
        return BeamAnswers(shortlist, Choice(best_E, odds_E, np.inf, type_E))


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
