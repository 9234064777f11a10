"""The metric that the settings of a run name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchmetrics import Metric

from portico.errors import InputError
from portico.mrc.metrics.natural_questions import NqF1
from portico.mrc.metrics.rouge import Rouge
from portico.mrc.metrics.spans import SpanScores
from portico.mrc.metrics.squad import Mlqa, Mrqa, SquadV1, SquadV2, gold_texts
from portico.mrc.metrics.tydi import TydiF1
from portico.value_rules import Rule

# Each metric with the settings that it takes.
_METRICS: Mapping[str, tuple[Callable[..., Metric], tuple[str, ...]]] = {
    "squad": (SquadV1, ()),
    "squad_v2": (SquadV2, ("no_answer_threshold", "average_precision")),
    "tydi": (TydiF1, ("passage_non_null_threshold", "minimal_non_null_threshold", "include_english")),
    "nq": (NqF1, ("long_non_null_threshold", "short_non_null_threshold", "precision_targets")),
    "mlqa": (Mlqa, ("language",)),
    "mrqa": (Mrqa, ("skip_unanswered",)),
    "rouge": (Rouge, ("rouge_types", "use_stemmer")),
}

_OF_SPANS = ("tydi", "nq")
_THRESHOLD = "_non_null_threshold"
_NEED_GOLD = ("squad", "mlqa", "mrqa", "rouge")

_OF_RUNS = ("name", "version_2_with_negative", "headline")

METRIC_KEYS = (*_OF_RUNS, *sorted({key for _, keys in _METRICS.values() for key in keys}))
"""The keys of the settings, of all metrics."""


METRIC_RULES: Mapping[str, Rule] = {
    "name": Rule((str,)),
    "version_2_with_negative": Rule((bool, type(None))),
    "headline": Rule((str,)),
    "no_answer_threshold": Rule((float,)),
    "average_precision": Rule((bool,)),
    "passage_non_null_threshold": Rule((int,), least=1),
    "minimal_non_null_threshold": Rule((int,), least=1),
    "include_english": Rule((bool, type(None))),
    "long_non_null_threshold": Rule((int,), least=1),
    "short_non_null_threshold": Rule((int,), least=1),
    "language": Rule((str, type(None))),
    "skip_unanswered": Rule((bool,)),
    "use_stemmer": Rule((bool,)),
}
"""What the values of those may be that a metric does not check itself."""


def chosen_metric(
    settings: Mapping[str, Any],
    examples: Sequence[Mapping[str, Any]],
    *,
    has_unanswerable: bool,
    has_spans: bool = True,
) -> Metric | SpanScores:
    """Return the ``compute_metrics`` that the settings name.

    Args:
        settings: ``name``, and what that metric takes. ``squad`` takes ``version_2_with_negative``, which chooses
            ``squad_v2`` in its place; ``None`` looks whether some question has no answer. The ``headline`` is for the
            configuration, which compares checkpoints and runs by it.
        examples: The examples that will be evaluated.
        has_unanswerable: Whether some question, to train or to evaluate on, has no answer.
        has_spans: Whether answers are spans of passages; generated ones are texts alone.

    Raises:
        InputError: If there is no such metric, it does not take one of the settings, or it cannot score an example.
    """
    name = settings.get("name", "squad")
    options = {key: value for key, value in settings.items() if key not in _OF_RUNS}
    if name == "squad" and has_negatives(settings, has_unanswerable=has_unanswerable):
        name = "squad_v2"
    if name not in _METRICS:
        raise InputError(f"`metric.name={name}` is no metric of answers; set it to one of {', '.join(_METRICS)}.")
    if name in _OF_SPANS and not has_spans:
        raise InputError(
            f"The metric {name} scores spans of passages, but generated answers are texts; choose `metric=rouge` or "
            "`metric=squad`."
        )
    metric_class, keys = _METRICS[name]
    _check_options(name, options, keys)
    if name in _NEED_GOLD:
        _check_gold(name, examples)
    metric = metric_class(**options)
    if name not in _OF_SPANS:
        return metric
    scores = SpanScores(metric, examples)
    _check_annotators(name, scores, [key for key in keys if key.endswith(_THRESHOLD)])
    return scores


def has_negatives(settings: Mapping[str, Any], *, has_unanswerable: bool) -> bool:
    """Return whether "no answer" can be predicted, which the settings say or the data decide."""
    version_2 = settings.get("version_2_with_negative")
    return has_unanswerable if version_2 is None else bool(version_2)


def _check_options(name: str, options: Mapping[str, Any], keys: Sequence[str]) -> None:
    foreign = sorted(options.keys() - set(keys))
    if foreign:
        raise InputError(
            f"The metric {name} does not take {', '.join(f'`metric.{key}`' for key in foreign)}; it takes "
            f"{', '.join(f'`metric.{key}`' for key in keys) or 'no settings'}."
        )


def _check_gold(name: str, examples: Sequence[Mapping[str, Any]]) -> None:
    without = [example["id"] for example in examples if not gold_texts(example)]
    if without:
        raise InputError(
            f"{len(without)} of {len(examples)} questions to evaluate on have no answer, {without[0]!r} for one, and "
            f"the metric {name} cannot score them; choose `metric=squad_v2`, or data in which every question has one."
        )


def _check_annotators(name: str, scores: SpanScores, thresholds: Sequence[str]) -> None:
    """Refuse data of which no question can have a gold answer, so that every score would be 0."""
    too_high = [key for key in thresholds if getattr(scores.metric, key) > scores.most_annotators]
    if too_high:
        shown = " and ".join(f"`metric.{key}={getattr(scores.metric, key)}`" for key in too_high)
        raise InputError(
            f"The metric {name} takes for gold what {shown} annotators agree on, but no question to evaluate on has "
            f"more than {scores.most_annotators}; set {'each' if len(too_high) > 1 else 'it'} to "
            f"{max(scores.most_annotators, 1)}, or choose `metric=squad_v2`."
        )
