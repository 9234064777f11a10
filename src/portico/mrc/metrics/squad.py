"""The metrics of SQuAD 1.1 and 2.0, and of MRQA and MLQA, which score answers by the rules of SQuAD 1.1.

Shape suffixes: E questions.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torchmetrics import Metric

from portico.data.defects import InvalidRecord, shorten
from portico.errors import InputError
from portico.mrc.datasets import values
from portico.mrc.metrics.scores import (
    Normalize,
    exact_and_f1,
    language_code,
    mlqa_normalization,
    normalize_answer,
    text_scores,
)
from portico.mrc.metrics.thresholds import Curve, Doubles, PrefixSweep, QuestionRows, compute_running_sums
from portico.trust.disk import read_text
from portico.trust.names import data_only

logger = logging.getLogger(__name__)

Record: TypeAlias = Mapping[str, Any]
Records: TypeAlias = Sequence[Record]
# Records, answers by id, or a file of either.
Predictions: TypeAlias = Records | Mapping[str, Any] | str | PathLike[str]
Probabilities: TypeAlias = Mapping[str, float] | str | PathLike[str]

_GROUPS = ("", "HasAns_", "NoAns_")
_ANSWERABLE = 1
# Columns of the state "sweep" of SquadV2.
_NULL_PROBABILITY, _HAS_ANSWER, _EXACT, _F1, _HAS_TEXT = range(5)


def squad_metrics(
    predictions: Predictions,
    references: Records,
    version_2_with_negative: bool,
    no_answer_probabilities: Probabilities | None = None,
) -> dict[str, float]:
    """Return the metrics of a whole evaluation set.

    Args:
        predictions: ``{"id", "prediction_text"}``, for SQuAD 2.0 optionally with ``"no_answer_probability"``; or as
            official scripts take them, see :func:`prediction_records`.
        references: ``{"id", "answers": {"text": [...], "answer_start": [...]}}``.
        version_2_with_negative: Whether some questions have no answer: if so, return what ``SquadV2`` computes,
            otherwise what ``SquadV1`` does.
        no_answer_probabilities: As of :meth:`SquadV2.update`.

    Raises:
        InputError: If a reference has no prediction.
    """
    predictions = prediction_records(predictions, no_answer_probabilities)
    check_answered(predictions, references)
    # Every process has the records of all, so nothing is to be synchronized.
    metric = (SquadV2 if version_2_with_negative else SquadV1)(sync_on_compute=False)
    metric.update(predictions, references)
    return metric.compute()


class AnswerTexts(Metric):
    """Exact match and F1 by the rules of SQuAD 1.1, summed over batches and processes.

    ``compute`` returns ``exact_match`` and ``f1`` in 0..100.

    Args:
        normalize: The normalisation of predictions and gold answers.
        skip_unanswered: Leave out questions without a prediction, which otherwise score 0 and are logged.
        **kwargs: As in ``torchmetrics.Metric``.
    """

    full_state_update = False
    higher_is_better = True
    sums: torch.Tensor

    def __init__(self, normalize: Normalize, *, skip_unanswered: bool = False, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.normalize = normalize
        self.skip_unanswered = skip_unanswered
        # Sum of exact matches, sum of F1, number of questions.
        self.add_state("sums", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Predictions, references: Records) -> None:
        """Add a batch.

        Args:
            predictions: ``{"id", "prediction_text"}``, or as official scripts take them, see
                :func:`prediction_records`. Predictions without a reference are ignored; of several with
                the same id the last one counts.
            references: ``{"id", "answers": {"text": [...]}}``, or one text, a list of texts or a list of objects with
                ``text`` as ``answers``.

        Raises:
            InputError: If a question has no gold answer, or an answer is no text.
        """
        predictions = prediction_records(predictions)
        missing = _find_unanswered(predictions, references)
        if missing and not self.skip_unanswered:
            logger.warning(
                "%d of %d questions have no prediction and score 0, for example %r; check their ids.",
                len(missing),
                len(references),
                missing[0],
            )
        texts = {prediction["id"]: read_answer(prediction) for prediction in predictions}
        # The official script adds Python floats one by one in this order; so do we, to be equal to the last bit.
        exact_sum, f1_sum, total = self.sums.tolist()
        for reference in references:
            exact, f1 = 0.0, 0.0
            if reference["id"] in texts:
                golds = gold_texts(reference)
                if not golds:
                    raise InputError(
                        f"Question {reference['id']!r} has no gold answer, which the rules of SQuAD 1.1 cannot score; "
                        "use the metric of SQuAD 2.0 (`metric=squad_v2`, `portico.mrc.SquadV2`)."
                    )
                exact, f1 = text_scores(texts[reference["id"]], golds, self.normalization_of(reference))
            elif self.skip_unanswered:
                continue
            exact_sum = exact_sum + exact
            f1_sum = f1_sum + f1
            total = total + 1
        self.sums = self.sums.new_tensor([exact_sum, f1_sum, total])

    def normalization_of(self, reference: Record) -> Normalize:
        """Return the normalisation of the answers to a question."""
        return self.normalize

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far, at least one question."""
        exact, f1, total = self.sums.tolist()
        if total == 0:
            raise build_empty_error()
        return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}


@data_only
class SquadV1(AnswerTexts):
    """The metrics of SQuAD 1.1, equal to the results of the official script.

    ``torchmetrics.text.SQuAD`` can differ: it sums in ``float32``, and returns an F1 of 1 where the answer and a gold
    answer both consist of articles and punctuation only.

    Source: the official evaluation script of SQuAD 1.1, arXiv:1606.05250.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(normalize_answer, **kwargs)


@data_only
class Mrqa(AnswerTexts):
    """The metrics of the MRQA shared task.

    Args:
        skip_unanswered: Leave out questions without a prediction (``--skip-no-answer`` of the official script).
        **kwargs: As in ``torchmetrics.Metric``.

    Source: the official evaluation script of the MRQA 2019 shared task.
    """

    def __init__(self, *, skip_unanswered: bool = False, **kwargs: Any) -> None:
        super().__init__(normalize_answer, skip_unanswered=skip_unanswered, **kwargs)


@data_only
class Mlqa(AnswerTexts):
    """The metrics of MLQA and XQuAD: SQuAD's, with answers normalised in their language.

    The language of an answer is the ``language`` of its reference, if it has one.

    Args:
        language: Language of other answers, two letters; ``None`` if all references have one.
        **kwargs: As in ``torchmetrics.Metric``.

    Raises:
        InputError: If the language is neither in MLQA nor in XQuAD.
    Source: the official evaluation script of MLQA, arXiv:1910.07475.
    """

    def __init__(self, language: str | None = None, **kwargs: Any) -> None:
        super().__init__(normalize_answer if language is None else mlqa_normalization(language), **kwargs)
        self.language = language
        self.languages: dict[Any, str] = {}

    def of_examples(self, examples: Records) -> "Mlqa":
        """Return this metric with the languages of examples, by id, for references without ``language``.

        Raises:
            InputError: If the language of an example is unknown and the metric has none.
        """
        metric: Mlqa = deepcopy(self)
        metric.languages = {
            example["id"]: language for example in examples if (language := self._language_of(example))
        }
        if metric.language is None and len(metric.languages) < len(examples):
            mlqa_normalization(None)
        return metric

    def normalization_of(self, reference: Record) -> Normalize:
        language = self._language_of(reference) or self.languages.get(reference["id"]) or self.language
        return mlqa_normalization(language)

    def _language_of(self, record: Record) -> str | None:
        """Return the language of a record by the rules of MLQA; ``None`` if it has none, or the metric's applies."""
        given = record.get("language")
        if not isinstance(given, str) or given in ("", "UNKNOWN"):
            return None
        language = language_code(given)
        if language is None and self.language is None:
            mlqa_normalization(given)
        if language is None:
            warn_of_language(given, str(self.language))
        return language


@data_only
class SquadV2(QuestionRows):
    """Exact match and F1 of SQuAD 2.0, over batches and processes.

    ``compute`` returns ``exact``, ``f1`` and ``total``, and the same scores with the prefixes ``HasAns_`` and
    ``NoAns_`` for questions with and without an answer; all but the totals are in 0..100. If predictions have a
    ``no_answer_probability``, it adds ``best_exact`` and ``best_f1``, the scores at the best threshold of the
    probability, and these thresholds, ``best_exact_thresh`` and ``best_f1_thresh``.

    Args:
        no_answer_threshold: A prediction whose probability of "no answer" is higher counts as "no answer".
        average_precision: Add ``pr_exact_ap``, ``pr_f1_ap`` and ``pr_oracle_ap``, the areas under the curves of
            ``precision_recall``, in 0..100, where predictions have probabilities and some question has an answer.
        **kwargs: As in ``torchmetrics.Metric``.

    Source: the official evaluation script of SQuAD 2.0, arXiv:1806.03822.
    """

    sums: torch.Tensor
    sweep: list[torch.Tensor] | torch.Tensor

    def __init__(self, *, no_answer_threshold: float = 1.0, average_precision: bool = False, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.no_answer_threshold = no_answer_threshold
        self.average_precision = average_precision
        # Rows: `_GROUPS`. Columns: sum of exact matches, sum of F1, number of questions.
        self.add_state("sums", torch.zeros(3, 3, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_rows("sweep", 5)

    def update(
        self,
        predictions: Predictions,
        references: Records,
        no_answer_probabilities: Probabilities | None = None,
    ) -> None:
        """Add a batch in the form of ``AnswerTexts.update``, optionally with ``"no_answer_probability"``.

        ``no_answer_probabilities`` are these by id, or a JSON file of them, as ``--na-prob-file`` of the official
        script. Of several references with the same id, too, the last one counts.

        Raises:
            InputError: If a reference has no prediction, or only some predictions have a probability.
        """
        predictions = prediction_records(predictions, no_answer_probabilities)
        check_answered(predictions, references)
        by_id = {prediction["id"]: prediction for prediction in predictions}
        golds = {reference["id"]: gold_texts(reference) for reference in references}
        have = ["no_answer_probability" in prediction for prediction in by_id.values()]
        if any(have) and not all(have):
            raise _incomplete(sum(have), len(have))
        given = {key: read_answer(by_id[key]) for key in golds}
        raw = {key: exact_and_f1(given[key], texts) for key, texts in golds.items()}
        has_answer_E = np.fromiter((bool(texts) for texts in golds.values()), np.bool_, len(golds))
        scores_E3 = np.column_stack([np.array(list(raw.values()), np.float64).reshape(-1, 2), np.ones(len(golds))])
        if any(have):
            probability_E = np.array([by_id[key]["no_answer_probability"] for key in golds], np.float64)
            # `apply_no_ans_threshold` of evaluate-v2.0.py; the best thresholds are sought over the raw scores.
            is_null_E = probability_E > self.no_answer_threshold
            scores_E3[is_null_E, :2] = ~has_answer_E[is_null_E, None]
        groups = (np.ones_like(has_answer_E), has_answer_E, ~has_answer_E)
        sums_33 = self.sums.cpu().numpy()
        sums = [compute_running_sums(np.vstack([sums_33[g], scores_E3[of]]))[-1] for g, of in enumerate(groups)]
        self.sums = self.sums.new_tensor(np.array(sums))
        if any(have):
            # In the order of the predictions, which decides among equal probabilities.
            place = {key: e for e, key in enumerate(golds)}
            order = [place[key] for key in by_id if key in place]
            has_text_E = [bool(text) for text in given.values()]
            rows_E5 = np.column_stack([probability_E, has_answer_E, list(raw.values()), has_text_E])
            self.append_rows("sweep", rows_E5[order])

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far, at least one record."""
        if self.sums[0, 2] == 0:
            raise build_empty_error()
        scores: dict[str, float] = {}
        for group, (exact, f1, total) in zip(_GROUPS, self.sums.tolist(), strict=True):
            if total > 0:
                means = {"exact": 100.0 * exact / total, "f1": 100.0 * f1 / total, "total": int(total)}
                scores |= {f"{group}{name}": mean for name, mean in means.items()}
        if len(self.rows("sweep")):
            scores |= self._best_scores()
            if self.average_precision:
                curves = self.precision_recall()
                scores |= {f"pr_{name}_ap": 100.0 * curve.average_precision for name, curve in curves.items()}
        return scores

    def precision_recall(self) -> dict[str, Curve]:
        """Return the curves ``exact``, ``f1`` and ``oracle`` (each answer worth 1) over the probabilities.

        They cover the batches added in this process. The result is empty if the predictions have no probability or no
        question has an answer.
        """
        sweep = self.rows("sweep").numpy()
        if not len(sweep) or self.sums[_ANSWERABLE, 2] == 0:
            return {}
        worth: dict[str, Doubles | float] = {"exact": sweep[:, _EXACT], "f1": sweep[:, _F1], "oracle": 1.0}
        has_answer_E, null_probability_E = sweep[:, _HAS_ANSWER], sweep[:, _NULL_PROBABILITY]
        # Every question below the threshold counts as predicted, even with an empty text.
        predicted_E = np.ones_like(has_answer_E)
        curves = {}
        for name, worth_E in worth.items():
            outcomes = [has_answer_E, predicted_E, has_answer_E * worth_E, -null_probability_E]
            prefixes = PrefixSweep(np.stack(outcomes, axis=1))
            curves[name] = Curve(
                np.append(1.0, prefixes.precision_T),
                np.append(0.0, prefixes.recall_T),
                np.append(-np.inf, -prefixes.threshold_T),
            )
        return curves

    def _best_scores(self) -> dict[str, float]:
        sweep = self.rows("sweep").numpy()
        num_questions = len(sweep)
        has_answer_E = sweep[:, _HAS_ANSWER] == 1
        if num_questions != self.sums[0, 2]:
            raise _incomplete(num_questions, int(self.sums[0, 2]))
        num_unanswerable = float((~has_answer_E).sum())
        order_E = sweep[:, _NULL_PROBABILITY].argsort(kind="stable")
        scores: dict[str, float] = {}
        for column, name in ((_EXACT, "exact"), (_F1, "f1")):
            # `find_best_thresh` of evaluate-v2.0.py: an unanswerable question counts as right until it is answered;
            # the threshold is the probability of the last question that is answered, 0 if none is.
            gain_E = np.where(has_answer_E, sweep[:, column], -sweep[:, _HAS_TEXT])[order_E]
            score_E = compute_running_sums(np.append(num_unanswerable, gain_E))
            best = int(score_E.argmax())
            threshold = float(sweep[order_E[best - 1], _NULL_PROBABILITY]) if best > 0 else 0.0
            scores |= {f"best_{name}": 100.0 * float(score_E[best]) / num_questions, f"best_{name}_thresh": threshold}
        return scores


@cache
def warn_of_language(given: str, used: str) -> None:
    """Warn once that answers in a language without rules are scored by the rules of another one."""
    logger.warning(
        "Answers whose language is %r are normalised as %r (`metric.language`), because MLQA has no rules for theirs; "
        "score them apart, by the rules of SQuAD (`metric=squad`).",
        given,
        used,
    )


def prediction_records(predictions: Predictions, probabilities: Probabilities | None = None) -> Records:
    """Return predictions as records ``{"id", "prediction_text"}``, with ``"no_answer_probability"`` if it is known.

    Args:
        predictions: Such records; or answers by id, or the JSON file that holds them, as the official scripts of
            SQuAD read them. An answer is a string, ``None`` for no answer, a mapping with ``text``, or a list of
            these, as of n-best files, of which the first counts.
        probabilities: Probabilities of "no answer" by id, or the JSON file that holds them.

    Raises:
        InputError: If a file cannot be read, or an entry holds no text.
    """
    given = _content_of("predictions", predictions)
    if isinstance(given, Mapping):
        given = [record_of(key, entry) for key, entry in given.items()]
    if probabilities is None:
        return given
    by_id = _content_of("no_answer_probabilities", probabilities)
    return [
        {**record, "no_answer_probability": by_id[record["id"]]} if record["id"] in by_id else record
        for record in given
    ]


def record_of(key: str, entry: object) -> dict[str, Any]:
    """Return the record of an entry of answers by id, as :func:`prediction_records` takes them."""
    best = entry[0] if isinstance(entry, list) and entry else entry
    best = best if isinstance(best, Mapping) else {"prediction_text": best}
    name = next((name for name in ("prediction_text", "text", "answer") if name in best), None)
    if name is None:
        raise InputError(
            f"The answer to question {key!r} is {shorten(best)}, without `text`; write {{id: text}}, or mappings that "
            "hold `text` or `prediction_text`."
        )
    record: dict[str, Any] = {"id": key, "prediction_text": read_answer({"id": key, "prediction_text": best[name]})}
    # Entries of n-best lists have the probability of their answer instead, under another name.
    if "no_answer_probability" in best:
        record["no_answer_probability"] = best["no_answer_probability"]
    return record


def _content_of(name: str, source: Any) -> Any:
    if not isinstance(source, str | PathLike):
        return source
    try:
        content = json.loads(read_text(Path(source)))
    except (OSError, ValueError) as error:
        raise InputError(
            f"`{name}={str(source)!r}` cannot be read ({shorten(error)}); name a JSON file of values by question id."
        ) from error
    if not isinstance(content, list | Mapping):
        raise InputError(f"{source} holds a {type(content).__name__}; write values by question id.")
    return content


def gold_texts(reference: Record) -> list[str]:
    """Return the texts of ``reference["answers"]``: SQuAD's ``{"text": [...]}``, a list of texts, or one text."""
    try:
        return values.texts_of(reference["answers"])
    except InvalidRecord as error:
        raise InputError(f"The reference of question {reference['id']!r}: {error} Correct it.") from error


def read_answer(prediction: Record) -> str:
    """Return ``prediction["prediction_text"]``; ``None`` is no answer, ``""``."""
    try:
        return values.answer_text("prediction_text", prediction["prediction_text"])
    except InvalidRecord as error:
        raise InputError(f"The answer to question {prediction['id']!r}: {error} Correct it.") from error


def check_answered(predictions: Records, references: Records) -> None:
    missing = _find_unanswered(predictions, references)
    if missing:
        raise InputError(
            f"{len(missing)} of {len(references)} references have no prediction, for example {min(missing)!r}; "
            "predict an answer to every question, an empty string for no answer."
        )


def build_empty_error() -> InputError:
    return InputError("No question was scored; call `update` with predictions and references before `compute`.")


def _find_unanswered(predictions: Records, references: Records) -> list[Any]:
    answered = {prediction["id"] for prediction in predictions}
    return [reference["id"] for reference in references if reference["id"] not in answered]


def _incomplete(num_with: int, num_all: int) -> InputError:
    return InputError(
        f"{num_with} of {num_all} predictions have a `no_answer_probability`; give it with every prediction or with "
        "none."
    )
