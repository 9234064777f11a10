"""Logits to the records of PrimeQA's extractive post-processing.

Shape suffixes: E examples, F features (windows), N ranked spans.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from portico.mrc.answers.best_tokens import BestTokens
from portico.mrc.answers.candidates import Candidates
from portico.mrc.answers.collector import SpanCollector
from portico.mrc.answers.feature_groups import grouped_offsets
from portico.mrc.answers.offsets import Features
from portico.mrc.answers.output_stream import OutputStream
from portico.mrc.answers.passages import passage_indices
from portico.mrc.answers.probabilities import span_probabilities
from portico.mrc.answers.questions import Questions
from portico.mrc.answers.ranking import rank_spans
from portico.mrc.answers.scorers import ScoreDifference
from portico.mrc.answers.search import UnpaddedSearch
from portico.mrc.answers.span_table import RankedSpans
from portico.mrc.arrays import Int64s
from portico.mrc.datasets.examples import Examples
from portico.mrc.features.labels import TargetType

SpanRecord: TypeAlias = dict[str, Any]
"""One possible answer, by PrimeQA's keys."""


class SpanRecords(OutputStream):
    """Collects logits during evaluation and ranks spans by PrimeQA's rules.

    Args:
        examples: The examples, with ``example_id``, ``context`` and, for `single_context`, ``passage_candidates``.
        features: Their features, grouped by example in the order of the examples.
        k: Spans to keep of each example.
        n_best_size: Starts and ends that are looked at in each feature.
        max_answer_length: Longest answer, in tokens.
        scorer: What spans are ranked by.
        single_context: Whether each example has one context of several passages (``passage_candidates``), and not a
            context for each passage.

    Raises:
        InputError: If the features are not grouped, or an example has none.
    """

    def __init__(
        self,
        examples: Examples,
        features: Features,
        *,
        k: int,
        n_best_size: int,
        max_answer_length: int,
        scorer: ScoreDifference,
        single_context: bool,
    ) -> None:
        self._questions = Questions(examples)
        self._offsets = grouped_offsets(features, self._questions)
        self._k, self._max_answer_length, self._scorer = k, max_answer_length, scorer
        self._passages = self._questions.passages if single_context else None
        lengths_F = self._offsets.lengths_F
        keep = BestTokens(UnpaddedSearch(n_best_size, lengths_F), n_best_size, int(lengths_F.max()))
        super().__init__(SpanCollector(self._offsets, keep))

    def update(self, outputs: Sequence[Any], feature_indices: npt.ArrayLike) -> None:
        """Take the outputs of the model for one batch: start, end and answer-type logits, perhaps three more.

        Raises:
            InputError: See `SpanCollector.update`, or if there are no answer-type logits.
        """
        self.update_outputs(outputs, feature_indices)

    def compute(self) -> dict[str, list[SpanRecord]]:
        """Return the records of every example, best first, by its identifier.

        Raises:
            InputError: If a feature got no logits, or the model gave no answer-type logits.
        """
        candidates = self._collector.complete()
        self._scorer.check(candidates)
        ranked = rank_spans(
            candidates,
            self._offsets,
            None,
            n_best_size=self._k,
            max_answer_length=self._max_answer_length,
            scorer=self._scorer.of_spans,
        )
        return {
            example_id: records or [_no_span(example_id)] for example_id, records in self._records(ranked, candidates)
        }

    def _records(self, ranked: RankedSpans, candidates: Candidates) -> Iterator[tuple[str, list[SpanRecord]]]:
        spans = ranked.spans
        row_N = spans.place_N3[:, 0]
        context_N = self._offsets.context_index_F[candidates.feature_index_F[row_N]]
        columns = {
            **_columns_of_features(candidates, row_N),
            **_columns_of_tokens(candidates, spans.place_N3),
            "start_logit": spans.start_logit_N,
            "end_logit": spans.end_logit_N,
            "span_answer_score": spans.score_N,
            "passage_index": self._passages_of(ranked, context_N),
            "normalized_span_answer_score": span_probabilities(ranked),
        }
        own = [spans.chars_N2.tolist(), context_N.tolist(), *(column.tolist() for column in columns.values())]
        rows = ranked.row_starts.tolist()
        for example_id, contexts, first, end in zip(
            self._questions.ids, self._questions.contexts, rows, rows[1:], strict=False
        ):
            yield (
                example_id,
                [
                    _record(example_id, contexts[context], chars, dict(zip(columns, values, strict=True)))
                    for chars, context, *values in zip(*(column[first:end] for column in own), strict=True)
                ],
            )

    def _passages_of(self, ranked: RankedSpans, context_N: Int64s) -> Int64s:
        if self._passages is None:
            return context_N
        return passage_indices(ranked.spans.chars_N2, ranked.example_N, self._passages)


def _columns_of_features(candidates: Candidates, row_N: npt.NDArray[np.int32]) -> dict[str, np.ndarray[Any, Any]]:
    null_F = candidates.starts.null_F.astype(np.float64) + candidates.ends.null_F
    has_types = candidates.type_logits_FK.shape[1] > 0
    types_FK = candidates.type_logits_FK if has_types else np.zeros((len(null_F), len(TargetType)))
    has_similarity = candidates.similarity_F1.shape[1] > 0
    return {
        "cls_score": null_F[row_N],
        "target_type_logits": types_FK[row_N],
        "query_passage_similarity": candidates.similarity_F1[row_N, 0] if has_similarity else np.zeros(len(row_N)),
    }


def _columns_of_tokens(candidates: Candidates, place_N3: npt.NDArray[np.int32]) -> dict[str, np.ndarray[Any, Any]]:
    row_N, start_N, end_N = place_N3.T
    starts, ends = candidates.starts, candidates.ends
    has_deviations = starts.deviation_Fn.shape[1] > 0
    zeros_N = np.zeros(len(row_N))
    return {
        "start_index": starts.token_Fn[row_N, start_N],
        "end_index": ends.token_Fn[row_N, end_N],
        "start_stdev": starts.deviation_Fn[row_N, start_N] if has_deviations else zeros_N,
        "end_stdev": ends.deviation_Fn[row_N, end_N] if has_deviations else zeros_N,
    }


def _record(example_id: str, context: str, chars: list[int], values: Mapping[str, Any]) -> SpanRecord:
    start, end = chars
    return {
        "example_id": example_id,
        "cls_score": values["cls_score"],
        "start_logit": values["start_logit"],
        "end_logit": values["end_logit"],
        "span_answer": {"start_position": start, "end_position": end},
        "span_answer_score": values["span_answer_score"],
        "start_index": values["start_index"],
        "end_index": values["end_index"],
        "passage_index": values["passage_index"],
        "target_type_logits": values["target_type_logits"],
        "span_answer_text": context[start:end],
        "yes_no_answer": int(TargetType.NO_ANSWER),
        "start_stdev": values["start_stdev"],
        "end_stdev": values["end_stdev"],
        "query_passage_similarity": values["query_passage_similarity"],
        "normalized_span_answer_score": values["normalized_span_answer_score"],
        "confidence_score": values["normalized_span_answer_score"],
    }


def _no_span(example_id: str) -> SpanRecord:
    """Return what stands for the answer of an example without any legal span."""
    nothing = dict.fromkeys(("cls_score", "start_logit", "end_logit", "span_answer_score"), 0.0)
    nothing |= dict.fromkeys(("start_stdev", "end_stdev", "query_passage_similarity"), 0.0)
    values = {
        **nothing,
        **dict.fromkeys(("start_index", "end_index", "passage_index"), -1),
        "target_type_logits": [0.0] * len(TargetType),
        "normalized_span_answer_score": 1.0,  # the softmax of a single score
    }
    return {**_record(example_id, "", [-1, -1], values), "span_answer_text": "empty"}
