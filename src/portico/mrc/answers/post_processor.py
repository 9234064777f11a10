"""Logits to answers: the rules of the QA example of transformers and our own, computed on arrays.

Shape suffixes: E examples, F features (windows), N ranked spans.
"""

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.answers.answer_set import Answers
from portico.mrc.answers.answer_types import answer_types
from portico.mrc.answers.best_tokens import BestTokens
from portico.mrc.answers.calibration import AnswerCalibration
from portico.mrc.answers.candidates import Candidates
from portico.mrc.answers.choice import choose, with_literal_empty
from portico.mrc.answers.collector import SpanCollector
from portico.mrc.answers.exhaustive_search import ExhaustiveSearch
from portico.mrc.answers.offsets import Features, token_offsets
from portico.mrc.answers.output_stream import OutputStream
from portico.mrc.answers.passages import passage_indices
from portico.mrc.answers.probabilities import span_probabilities
from portico.mrc.answers.questions import Questions
from portico.mrc.answers.ranking import null_spans, rank_spans
from portico.mrc.answers.scorers import ScoreDifference, sum_of_logits
from portico.mrc.answers.search import Search, TopTokenSearch, UnpaddedSearch
from portico.mrc.answers.shortlist import Shortlist, first_of_each_text
from portico.mrc.answers.span_table import RankedSpans
from portico.mrc.answers.top_tokens import Ties
from portico.mrc.datasets.examples import Examples

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
