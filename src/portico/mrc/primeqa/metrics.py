"""The metrics under PrimeQA's names and with its calls: any number of ``add_batch``, then ``compute``.

They return PrimeQA's numbers, with these differences: TyDiF1 scores English if there is no other language, and also
scores unknown languages, for both of which PrimeQA returns 0; and nothing is printed (``verbose`` logs).
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torchmetrics import Metric

from portico.data.sentences import get_sentence_splitter
from portico.errors import InputError
from portico.mrc.metrics.natural_questions import NqF1
from portico.mrc.metrics.rouge import KILT_ROUGE_L, Rouge
from portico.mrc.metrics.spans import Annotated, Record, annotators_of, yes_no_word
from portico.mrc.metrics.squad import Mlqa, SquadV1
from portico.mrc.metrics.tydi import TydiF1

logger = logging.getLogger(__name__)

Scores = dict[str, float]


class CollectingMetric(ABC):
    """Collects predictions and references, and scores them in ``compute``."""

    def __init__(self) -> None:
        self._predictions: list[Record] = []
        self._references: list[Annotated] = []

    def add(self, *, prediction: Record, reference: Annotated) -> None:
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Sequence[Record], references: Sequence[Annotated]) -> None:
        self._predictions.extend(predictions)
        self._references.extend(references)

    def compute(
        self,
        *,
        predictions: Sequence[Record] | None = None,
        references: Sequence[Annotated] | None = None,
        passage_non_null_threshold: int = 2,
        span_non_null_threshold: int = 2,
        verbose: bool = False,
        dataset_config_name: str | None = None,
    ) -> Scores | None:
        """Return the scores of everything added, with these predictions and references, and clear it.

        Every metric accepts the options of all, so that one call fits each; it ignores those it does not use. For
        TyDiF1, the thresholds are how many annotators must have given a passage or a minimal answer, and ``verbose``
        logs the scores of each language. For MLQA, the first code in a ``dataset_config_name`` such as
        ``"mlqa.zh.en"`` is the language of the answers. An ``InputError`` is raised if only one of predictions and
        references is given, or the records cannot be scored.
        """
        if (predictions is None) != (references is None):
            raise InputError("`compute` got only one of `predictions` and `references`; give both or neither.")
        if predictions is not None and references is not None:
            self.add_batch(predictions=predictions, references=references)
        options = {
            "passage_non_null_threshold": passage_non_null_threshold,
            "minimal_non_null_threshold": span_non_null_threshold,
        }
        scores = self._scores(options, verbose, dataset_config_name)
        self._predictions, self._references = [], []
        return scores

    @abstractmethod
    def _scores(self, thresholds: dict[str, Any], verbose: bool, dataset_config_name: str | None) -> Scores | None:
        """Return the scores of everything collected."""

    def _score_by(self, metric: Metric, read: Callable[[Record], Record] = lambda record: record) -> Scores:
        metric.update([read(record) for record in self._predictions], self._references)
        return metric.compute()


class SQUAD(CollectingMetric):
    def _scores(self, thresholds: dict[str, Any], verbose: bool, dataset_config_name: str | None) -> Scores:
        return self._score_by(SquadV1(sync_on_compute=False))


class MLQA(CollectingMetric):
    """Exact match and F1 in the language of the answers; see ``Mlqa``."""

    def _scores(self, thresholds: dict[str, Any], verbose: bool, dataset_config_name: str | None) -> Scores:
        if dataset_config_name is None:
            raise InputError(
                "MLQA needs the language of the answers, but `dataset_config_name` is missing; set it, for example "
                "`compute(..., dataset_config_name='mlqa.zh.en')` for answers in Chinese."
            )
        return self._score_by(Mlqa(dataset_config_name[5:7], sync_on_compute=False))


class TyDiF1(CollectingMetric):
    """Mean F1, precision and recall over the languages of TyDi QA; see ``TydiF1``.

    ``compute`` returns ``None`` if some question has no annotator.
    """

    def _scores(self, thresholds: dict[str, Any], verbose: bool, dataset_config_name: str | None) -> Scores | None:
        if not all(annotators_of(reference) for reference in self._references):
            return None
        scores = self._score_by(TydiF1(**thresholds, sync_on_compute=False), _yes_no_without_span)
        if verbose:
            for name, score in scores.items():
                logger.info("%s: %.4f", name, score)
        return {name: score for name, score in scores.items() if name.startswith("avg_")}


class NQF1(CollectingMetric):
    """F1, precision and recall of all long and short answers, gold if two annotators agree; see ``NqF1``."""

    def _scores(self, thresholds: dict[str, Any], verbose: bool, dataset_config_name: str | None) -> Scores:
        scores = self._score_by(NqF1(precision_targets=(), sync_on_compute=False), _yes_no_without_span)
        return {name: score for name, score in scores.items() if "_best_" not in name}


class ROUGE(CollectingMetric):
    """KILT's ROUGE-L, Google's of whole texts, and the mean number of spaces in an answer; see ``Rouge``."""

    def _scores(self, thresholds: dict[str, Any], verbose: bool, dataset_config_name: str | None) -> Scores:
        metric = Rouge((KILT_ROUGE_L, "rougeLsum"), split_sentences=get_sentence_splitter(), sync_on_compute=False)
        scores = self._score_by(metric)
        renamed = {"rougeLsum": "google_rougeL"}
        return {renamed.get(name, name): round(score, 4) for name, score in scores.items()}


def _yes_no_without_span(record: Record) -> Record:
    """Return a prediction, without the span if the answer is yes or no: PrimeQA ignores the span in that case."""
    if yes_no_word(record["yes_no_answer"], key=record["example_id"]) == "none":
        return record
    return {**record, "start_position": -1, "end_position": -1}
