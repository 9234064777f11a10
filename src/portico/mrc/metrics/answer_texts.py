"""Exact match and F1 of answers' texts, one metric a normalisation."""

import logging
from typing import Any

import torch
from torchmetrics import Metric

from portico.errors import InputError
from portico.mrc.metrics.normalization import Normalize, normalization, normalize_answer
from portico.mrc.metrics.records import Records, gold_texts, unanswered
from portico.mrc.metrics.scores import text_scores

logger = logging.getLogger(__name__)


class AnswerTexts(Metric):
    """Exact match and F1 by the rules of SQuAD 1.1, summed up over batches and processes.

    ``compute`` gives ``exact_match`` and ``f1`` in 0..100.

    Args:
        normalize: Makes texts comparable.
        skip_unanswered: Leave questions without prediction out, which otherwise score 0 and are logged.
        **kwargs: As in ``torchmetrics.Metric``.
    """

    full_state_update = False
    higher_is_better = True
    sums: torch.Tensor

    def __init__(self, normalize: Normalize, *, skip_unanswered: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.normalize = normalize
        self.skip_unanswered = skip_unanswered
        # Sum of exact matches, sum of F1, number of questions.
        self.add_state("sums", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Records, references: Records) -> None:
        """Add a batch.

        Args:
            predictions: ``{"id", "prediction_text"}``; those without reference are left out, of several with one id
                the last counts.
            references: ``{"id", "answers": {"text": [...]}}``, or a list of texts as ``answers``.

        Raises:
            InputError: If a question has no gold answer.
        """
        self._log_unanswered(predictions, references)
        texts = {prediction["id"]: prediction["prediction_text"] for prediction in predictions}
        # Added one by one, in order, as the official script does: so the sums are equal to the last bit.
        exact_sum, f1_sum, total = self.sums.tolist()
        for reference in references:
            exact, f1 = 0.0, 0.0
            if reference["id"] in texts:
                exact, f1 = text_scores(texts[reference["id"]], _golds(reference), self.normalize)
            elif self.skip_unanswered:
                continue
            exact_sum, f1_sum, total = exact_sum + exact, f1_sum + f1, total + 1
        self.sums = self.sums.new_tensor([exact_sum, f1_sum, total])

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far, at least one question."""
        exact, f1, total = self.sums.tolist()
        if total == 0:
            raise InputError("No question was scored; give predictions and references before the metrics are asked.")
        return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}

    def _log_unanswered(self, predictions: Records, references: Records) -> None:
        missing = unanswered(predictions, references)
        if missing and not self.skip_unanswered:
            logger.warning(
                "%d of %d questions have no prediction and score 0, %r for one.",
                len(missing),
                len(references),
                missing[0],
            )


class SquadV1(AnswerTexts):
    """The metrics of SQuAD 1.1.

    The numbers are the official script's. Those of ``torchmetrics.text.SQuAD`` can differ: it sums up in ``float32``,
    and gives an F1 of 1 to an answer and a gold answer that are nothing but articles and punctuation.

    Args:
        **kwargs: As in ``torchmetrics.Metric``.

    Source: the official evaluation script of SQuAD 1.1, arXiv:1606.05250.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(normalize_answer, **kwargs)


class Mrqa(AnswerTexts):
    """The metrics of the MRQA shared task.

    Args:
        skip_unanswered: Leave questions without prediction out (``--skip-no-answer`` of the official script).
        **kwargs: As in ``torchmetrics.Metric``.

    Source: the official evaluation script of the MRQA 2019 shared task.
    """

    def __init__(self, *, skip_unanswered: bool = False, **kwargs: Any) -> None:
        super().__init__(normalize_answer, skip_unanswered=skip_unanswered, **kwargs)


class Mlqa(AnswerTexts):
    """The metrics of MLQA and XQuAD: texts are normalised in the language of the answers.

    Args:
        language: Language of the answers, two letters.
        **kwargs: As in ``torchmetrics.Metric``.

    Raises:
        InputError: If the language is neither MLQA's nor XQuAD's.
    Source: the official evaluation script of MLQA, arXiv:1910.07475.
    """

    def __init__(self, language: str | None, **kwargs: Any) -> None:
        super().__init__(normalization(language), **kwargs)


def _golds(reference: Any) -> list[str]:
    golds = gold_texts(reference)
    if not golds:
        raise InputError(
            f"Question {reference['id']!r} has no gold answer, which the rules of SQuAD 1.1 cannot score; use the "
            "metric of SQuAD 2.0 (`metric=squad_v2`, `portico.mrc.SquadV2`)."
        )
    return golds
