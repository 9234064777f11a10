"""Answers of readers that search with a beam: ends are proposed for each of the best starts.

Shape suffixes: E examples, F features (windows), N ranked spans.
"""

import numpy as np

from portico.mrc.answers.answer_set import Answers
from portico.mrc.answers.answer_types import answer_types
from portico.mrc.answers.best_pairs import BestPairs
from portico.mrc.answers.choice import Choice
from portico.mrc.answers.collector import SpanCollector
from portico.mrc.answers.nbest_lists import NBestRecord
from portico.mrc.answers.offsets import Features, token_offsets
from portico.mrc.answers.output_stream import OutputStream
from portico.mrc.answers.probabilities import span_probabilities
from portico.mrc.answers.questions import Questions
from portico.mrc.answers.ranking import null_spans, rank_spans
from portico.mrc.answers.shortlist import Shortlist
from portico.mrc.datasets.examples import Examples

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
