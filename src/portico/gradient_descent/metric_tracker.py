"""The best value of a validation metric, and how many epochs ago it was reached."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from portico.gradient_descent.errors import ConfigurationError

_SIGNS = {"+": 1.0, "-": -1.0}
_COUNTERS = ("_best_so_far", "_epochs_with_no_improvement", "_is_best_so_far", "_epoch_number")
_STATE = (*_COUNTERS, "best_epoch", "best_epoch_metrics")


class MetricTracker:
    """Decides whether an epoch was the best so far, and whether to stop.

    Args:
        metric_name: Name of a metric, with ``+`` in front if higher is better, ``-`` if lower is. Several names stand
            for the signed sum of their metrics.
        patience: Epochs without improvement after which to stop; ``None`` never stops.

    Attributes:
        best_epoch: Epoch of the best value, from 0.
        best_epoch_metrics: All validation metrics of that epoch.

    Raises:
        ConfigurationError: If a name has no sign, or ``patience`` is not positive.
    """

    def __init__(self, metric_name: str | Sequence[str], patience: int | None = None) -> None:
        if patience is not None and (type(patience) is not int or patience <= 0):
            # The wording is AllenNLP's.
            raise ConfigurationError(
                f'{patience!r} is an invalid value for "patience": it must be a positive integer or None (if you want '
                "to disable early stopping)"
            )
        names = list(metric_name) if isinstance(metric_name, list | tuple) else [metric_name]
        self.tracked_metrics = [_signed(name) for name in names]
        if not names:
            raise ConfigurationError("`validation_metric` is an empty list; name at least one metric, as '-loss'.")
        self._patience = patience
        self.clear()

    def clear(self) -> None:
        """Forget all values; the patience stays."""
        self._best_so_far: float | None = None
        self._epochs_with_no_improvement = 0
        self._is_best_so_far = True
        self._epoch_number = 0
        self.best_epoch: int | None = None
        self.best_epoch_metrics: dict[str, float] = {}

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record the metrics of an epoch; only strictly better values count as an improvement."""
        score = self.combined_score(metrics)
        self._is_best_so_far = self._best_so_far is None or score > self._best_so_far
        if self._is_best_so_far:
            self._best_so_far = score
            self._epochs_with_no_improvement = 0
            self.best_epoch = self._epoch_number
        else:
            self._epochs_with_no_improvement += 1
        self._epoch_number += 1

    def skip_epoch(self) -> None:
        """Record an epoch without validation: it does not count towards the patience and cannot be the best."""
        self._is_best_so_far = False
        self._epoch_number += 1

    def combined_score(self, metrics: Mapping[str, float]) -> float:
        """Return the signed sum of the tracked metrics; higher is better.

        Raises:
            ConfigurationError: If one of them is missing.
        """
        for _, name in self.tracked_metrics:
            if name not in metrics:
                raise ConfigurationError(
                    f"You configured the trainer to use the {name} metric for early stopping, but the model did not "
                    f"produce that metric; set `validation_metric` to one of: {', '.join(metrics)}, with + or - in "
                    "front."
                )
        return sum(sign * metrics[name] for sign, name in self.tracked_metrics)

    def scheduler_metric(self, metrics: Mapping[str, float]) -> float:
        """Return the value for schedulers: a single tracked metric without its sign, or the signed sum of several."""
        score = self.combined_score(metrics)
        return score if len(self.tracked_metrics) > 1 else metrics[self.tracked_metrics[0][1]]

    def is_best_so_far(self) -> bool:
        """Return whether the last value is the best one, which it also is before the first."""
        return self._is_best_so_far

    def should_stop_early(self) -> bool:
        """Return whether the patience is exhausted."""
        return self._patience is not None and self._epochs_with_no_improvement >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the configuration."""
        return {name.removeprefix("_"): copy(getattr(self, name)) for name in _STATE}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a state returned by :meth:`state_dict`."""
        for name in _STATE:
            setattr(self, name, copy(state_dict[name.removeprefix("_")]))


def _signed(name: Any) -> tuple[float, str]:
    if not isinstance(name, str) or not name.strip("+-"):
        raise ConfigurationError(
            f"`validation_metric={name!r}` does not name a metric; set it to a name with a sign, as '-loss'."
        )
    if name[0] not in _SIGNS:
        raise ConfigurationError(
            f"`validation_metric={name!r}` must start with + or -: '+{name}' if higher is better, '-{name}' if lower "
            "is."
        )
    return _SIGNS[name[0]], name[1:]
