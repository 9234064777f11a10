"""The metrics of SQuAD 2.0, and of either version at once.

Shape suffixes: E questions.
"""

from typing import Any

import torch

from portico.errors import InputError
from portico.mrc.metrics.answer_texts import SquadV1
from portico.mrc.metrics.question_rows import QuestionRows
from portico.mrc.metrics.records import Record, Records, check_complete, gold_texts
from portico.mrc.metrics.scores import exact_match, token_f1
from portico.mrc.metrics.thresholds import Curve, best_threshold, precision_recall_curve

_GROUPS = ("", "HasAns_", "NoAns_")
_ANSWERABLE = 1
# Columns of the state "sweep".
_NULL_PROBABILITY, _HAS_ANSWER, _EXACT, _F1, _HAS_TEXT = range(5)


def squad_metrics(predictions: Records, references: Records, version_2_with_negative: bool) -> dict[str, float]:
    """Return the metrics of a whole evaluation set.

    Args:
        predictions: ``{"id", "prediction_text"}``, for SQuAD 2.0 perhaps with ``"no_answer_probability"``.
        references: ``{"id", "answers": {"text": [...], "answer_start": [...]}}``.
        version_2_with_negative: Whether some questions have no answer; gives what `SquadV2` computes, otherwise what
            `SquadV1` does.

    Raises:
        InputError: If a reference has no prediction.
    """
    check_complete(predictions, references)
    # Every process has the records of all.
    metric = (SquadV2 if version_2_with_negative else SquadV1)(sync_on_compute=False)
    metric.update(predictions, references)
    scores: dict[str, float] = metric.compute()
    return scores


class SquadV2(QuestionRows):
    """Exact match and F1 of SQuAD 2.0, over batches and processes.

    ``compute`` gives ``exact``, ``f1`` and ``total``, and the same with ``HasAns_`` and ``NoAns_`` in front for the
    questions with and without an answer, if there are any; all but the totals in 0..100. If predictions come with
    ``no_answer_probability``, it adds ``best_exact`` and ``best_f1``: what answering only below the best probability
    would give, which ``best_exact_thresh`` and ``best_f1_thresh`` name.

    Args:
        no_answer_threshold: A prediction whose probability of "no answer" is above counts as "no answer".
        average_precision: Add ``pr_exact_ap``, ``pr_f1_ap`` and ``pr_oracle_ap``, the areas below the curves of
            `precision_recall`, in 0..100, where predictions have probabilities and some question has an answer.
        **kwargs: As in ``torchmetrics.Metric``.

    Source: the official evaluation script of SQuAD 2.0, arXiv:1806.03822.
    """

    sums: torch.Tensor
    sweep: list[torch.Tensor] | torch.Tensor

    def __init__(self, *, no_answer_threshold: float = 1.0, average_precision: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.no_answer_threshold = no_answer_threshold
        self.average_precision = average_precision
        # Rows: `_GROUPS`. Columns: sum of exact matches, sum of F1, number of questions.
        self.add_state("sums", torch.zeros(3, 3, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_rows("sweep", 5)

    def update(self, predictions: Records, references: Records) -> None:
        """Add a batch.

        Args:
            predictions: As in `squad_metrics`; those without reference are left out. Of several with one id the last
                counts, of references too.
            references: As in `squad_metrics`.

        Raises:
            InputError: If a reference has no prediction, or only some predictions have a probability.
        """
        check_complete(predictions, references)
        by_id = {prediction["id"]: prediction for prediction in predictions}
        has_probability = _have_probabilities(by_id.values())
        golds = {reference["id"]: gold_texts(reference) for reference in references}
        raw = {key: _scores(by_id[key], texts) for key, texts in golds.items()}
        self._add_sums(by_id, golds, raw)
        if has_probability:
            # In the order of the predictions, which decides among equal probabilities.
            self.append_rows(
                "sweep",
                [
                    [by_id[key]["no_answer_probability"], bool(golds[key]), *raw[key], bool(_text(by_id[key]))]
                    for key in by_id
                    if key in golds
                ],
            )

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far, at least one record."""
        if self.sums[0, 2] == 0:
            raise InputError("No question was scored; give predictions and references before the metrics are asked.")
        scores: dict[str, float] = {}
        for group, (exact, f1, total) in zip(_GROUPS, self.sums.tolist(), strict=True):
            if total > 0:
                means = {"exact": 100.0 * exact / total, "f1": 100.0 * f1 / total, "total": int(total)}
                scores |= {f"{group}{name}": mean for name, mean in means.items()}
        if len(self.rows("sweep")):
            scores |= self._best_scores()
            if self.average_precision:
                scores |= {f"pr_{name}_ap": 100.0 * curve.average_precision for name, curve in self._curves().items()}
        return scores

    def precision_recall(self) -> dict[str, Curve]:
        """Return the curves ``exact``, ``f1`` and ``oracle`` (each answer worth 1) over the probabilities.

        Only of what was added in this process. Empty where predictions had no probability, or no question an answer.
        """
        return self._curves() if len(self.rows("sweep")) else {}

    def _add_sums(
        self, by_id: dict[Any, Record], golds: dict[Any, list[str]], raw: dict[Any, tuple[float, float]]
    ) -> None:
        # Added one by one, in order, as the official script does: so the sums are equal to the last bit.
        sums = self.sums.tolist()
        for key, texts in golds.items():
            scores = raw[key]
            if by_id[key].get("no_answer_probability", 0.0) > self.no_answer_threshold:
                scores = (float(not texts),) * 2
            for group in (0, 1 if texts else 2):
                sums[group] = [total + score for total, score in zip(sums[group], (*scores, 1), strict=True)]
        self.sums = self.sums.new_tensor(sums)

    def _best_scores(self) -> dict[str, float]:
        sweep = self.rows("sweep").numpy()
        num_questions, has_answer_E = len(sweep), sweep[:, _HAS_ANSWER] == 1
        if num_questions != self.sums[0, 2]:
            raise _incomplete(num_questions, int(self.sums[0, 2]))
        scores: dict[str, float] = {}
        for column, name in ((_EXACT, "exact"), (_F1, "f1")):
            gain_E = sweep[:, column].copy()
            # A question without an answer counts as right until it is answered.
            gain_E[~has_answer_E] = -sweep[~has_answer_E, _HAS_TEXT]
            best, threshold = best_threshold(sweep[:, _NULL_PROBABILITY], gain_E, int((~has_answer_E).sum()))
            scores |= {f"best_{name}": 100.0 * best / num_questions, f"best_{name}_thresh": threshold}
        return scores

    def _curves(self) -> dict[str, Curve]:
        sweep = self.rows("sweep").numpy()
        has_answer_E = sweep[:, _HAS_ANSWER]
        num_answerable = int(self.sums[_ANSWERABLE, 2])
        if num_answerable == 0:
            return {}
        worth = {"exact": sweep[:, _EXACT], "f1": sweep[:, _F1], "oracle": 1.0}
        return {
            name: precision_recall_curve(sweep[:, _NULL_PROBABILITY], has_answer_E * worth_E, num_answerable)
            for name, worth_E in worth.items()
        }


def _text(prediction: Record) -> str:
    return str(prediction["prediction_text"])


def _scores(prediction: Record, golds: list[str]) -> tuple[float, float]:
    return exact_match(_text(prediction), golds), token_f1(_text(prediction), golds)


def _have_probabilities(predictions: Any) -> bool:
    have = ["no_answer_probability" in prediction for prediction in predictions]
    if any(have) and not all(have):
        raise _incomplete(sum(have), len(have))
    return any(have)


def _incomplete(num_with: int, num_all: int) -> InputError:
    return InputError(
        f"{num_with} of {num_all} predictions have a `no_answer_probability`; give it with every prediction, or with "
        "none."
    )
