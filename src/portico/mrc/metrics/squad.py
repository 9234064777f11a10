"""The metrics of SQuAD 1.1 and 2.0.

Shape suffixes: E examples.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torchmetrics import Metric
from torchmetrics.text import SQuAD
from torchmetrics.utilities import dim_zero_cat

from portico.errors import InputError
from portico.mrc.metrics.scores import exact_match, normalize_answer, token_f1

__all__ = ["SquadV2", "exact_match", "normalize_answer", "squad_metrics", "token_f1"]

Records: TypeAlias = Sequence[Mapping[str, Any]]

_GROUPS = ("NoAns", "HasAns")


def squad_metrics(predictions: Records, references: Records, version_2_with_negative: bool) -> dict[str, float]:
    """Return the metrics of a whole evaluation set.

    Args:
        predictions: ``{"id", "prediction_text"}``, for SQuAD 2.0 perhaps with ``"no_answer_probability"``.
        references: ``{"id", "answers": {"text": [...], "answer_start": [...]}}``.
        version_2_with_negative: Whether some questions have no answer; gives what `SquadV2` computes, otherwise
            ``exact_match`` and ``f1`` in 0..100 as torchmetrics does.

    Raises:
        InputError: If a reference has no prediction.
    """
    if version_2_with_negative:
        # Every process has the records of all.
        metric = SquadV2(sync_on_compute=False)
        metric.update(predictions, references)
        scores: dict[str, float] = metric.compute()
        return scores
    _check_complete(predictions, references)
    squad = SQuAD(sync_on_compute=False)
    squad.update(
        [{"id": record["id"], "prediction_text": record["prediction_text"]} for record in predictions],
        [{"id": record["id"], "answers": record["answers"]} for record in references],
    )
    return {name: float(score) for name, score in squad.compute().items()}


class SquadV2(Metric):
    """Exact match and F1 of SQuAD 2.0, summed up over batches and processes.

    ``compute`` gives ``exact``, ``f1`` and ``total``, and the same with ``HasAns_`` and ``NoAns_`` in front for the
    questions with and without an answer, if there are any; all but the totals in 0..100. If predictions come with
    ``no_answer_probability``, it adds ``best_exact`` and ``best_f1``: what answering only below the best probability
    would give, which ``best_exact_thresh`` and ``best_f1_thresh`` name.

    Source: the official evaluation script of SQuAD 2.0, arXiv:1806.03822.
    """

    full_state_update = False
    higher_is_better = True
    sums: torch.Tensor
    sweep: list[torch.Tensor] | torch.Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Rows: questions without and with an answer. Columns: sum of exact matches, sum of F1, number of questions.
        self.add_state("sums", torch.zeros(2, 3, dtype=torch.float64), dist_reduce_fx="sum")
        # Columns: probability of "no answer", whether there is an answer, gain in exact match and in F1 by answering.
        self.add_state("sweep", [], dist_reduce_fx="cat")

    def update(self, predictions: Records, references: Records) -> None:
        """Add a batch; records as in `squad_metrics`, predictions without reference are left out."""
        _check_complete(predictions, references)
        by_id = {prediction["id"]: prediction for prediction in predictions}
        rows: tuple[list[list[float]], list[list[float]]] = ([], [])
        sweep = []
        for reference in references:
            prediction = by_id[reference["id"]]
            text, golds = prediction["prediction_text"], reference["answers"]["text"]
            exact, f1, has_answer = exact_match(text, golds), token_f1(text, golds), len(golds) > 0
            rows[has_answer].append([exact, f1, 1])
            if "no_answer_probability" in prediction:
                # A question without an answer counts as right until it is answered.
                gains = (exact, f1) if has_answer else (-bool(text), -bool(text))
                sweep.append([prediction["no_answer_probability"], has_answer, *gains])
        for has_answer in (False, True):
            self.sums[int(has_answer)] += self.sums.new_tensor(rows[has_answer]).reshape(-1, 3).sum(dim=0)
        if sweep:
            assert isinstance(self.sweep, list)
            self.sweep.append(self.sums.new_tensor(sweep))

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far, at least one record."""
        scores = _mean_scores("", self.sums.sum(dim=0))
        for has_answer in (1, 0):
            if self.sums[has_answer, 2] > 0:
                scores |= _mean_scores(f"{_GROUPS[has_answer]}_", self.sums[has_answer])
        if len(self.sweep):
            scores |= _best_scores(dim_zero_cat(self.sweep))
        return scores


def _mean_scores(prefix: str, sums: torch.Tensor) -> dict[str, float]:
    exact, f1, total = sums.tolist()
    return {f"{prefix}exact": 100 * exact / total, f"{prefix}f1": 100 * f1 / total, f"{prefix}total": int(total)}


def _best_scores(sweep_E4: torch.Tensor) -> dict[str, float]:
    sweep_E4 = sweep_E4[sweep_E4[:, 0].argsort(stable=True)]
    scores: dict[str, float] = {}
    for column, name in ((2, "exact"), (3, "f1")):
        best, threshold = _best_threshold(sweep_E4[:, 0], sweep_E4[:, 1], sweep_E4[:, column])
        scores |= {f"best_{name}": 100 * best / len(sweep_E4), f"best_{name}_thresh": threshold}
    return scores


def _best_threshold(
    probability_E: torch.Tensor, has_answer_E: torch.Tensor, gain_E: torch.Tensor
) -> tuple[float, float]:
    """Return the best sum of scores from answering only the first few questions, and the last one's probability.

    Answering none of them gets every question without an answer right; its threshold is 0.
    """
    score_E = torch.cat([probability_E.new_zeros(1), gain_E]).cumsum(dim=0) + (1 - has_answer_E).sum()
    best = int((score_E == score_E.max()).nonzero()[0])  # argmax may return any of several
    return float(score_E[best]), float(probability_E[best - 1]) if best > 0 else 0.0


def _check_complete(predictions: Records, references: Records) -> None:
    missing = {reference["id"] for reference in references} - {prediction["id"] for prediction in predictions}
    if missing:
        raise InputError(
            f"{len(missing)} of {len(references)} references have no prediction, {min(missing)!r} for one; predict an "
            f"answer to every question, an empty text for no answer."
        )
