"""What a training tells when it is done, and after each epoch."""

import datetime
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portico.gradient_descent.files import dump_metrics
from portico.gradient_descent.metric_tracker import MetricTracker


class TrainingReport:
    """Collects the metrics of a training under AllenNLP's keys.

    Args:
        tracker: Knows the best epoch, also of a training that is resumed.
        start_epoch: First epoch of this run.

    Attributes:
        metrics: The metrics.
    """

    def __init__(self, tracker: MetricTracker, start_epoch: int) -> None:
        self._tracker = tracker
        self._start_epoch = start_epoch
        self._start_time = time.time()
        self.metrics: dict[str, Any] = {"best_epoch": tracker.best_epoch}
        self._add("best_validation", tracker.best_epoch_metrics)

    def add_epoch(self, epoch: int, train_metrics: Mapping[str, Any], validation_metrics: Mapping[str, Any]) -> None:
        """Take the metrics of an epoch in; its validation has been tracked."""
        metrics = self.metrics
        for name, value in train_metrics.items():
            if name.endswith("_memory_MB"):
                metrics[f"peak_{name}"] = max(metrics.get(f"peak_{name}", 0), value)
        metrics["training_duration"] = str(datetime.timedelta(seconds=time.time() - self._start_time))
        metrics["training_start_epoch"] = self._start_epoch
        metrics["training_epochs"] = epoch - self._start_epoch
        metrics["epoch"] = epoch
        self._add("training", train_metrics)
        self._add("validation", validation_metrics)
        if self._tracker.is_best_so_far():
            metrics["best_epoch"] = epoch
            self._add("best_validation", validation_metrics)
            self._tracker.best_epoch_metrics = dict(validation_metrics)

    def progress_numbers(self) -> dict[str, float]:
        """Return the numbers that tell how the training goes: its metrics in the last epoch, and the best epoch."""
        return {
            name: value
            for name, value in self.metrics.items()
            if name.startswith(("training_", "best_"))
            and isinstance(value, int | float)
            and not name.endswith(("_memory_MB", "_start_epoch", "_epochs"))
        }

    def write_epoch(self, folder: Path) -> None:
        """Write ``metrics_epoch_N.json``."""
        dump_metrics(folder / f"metrics_epoch_{self.metrics['epoch']}.json", self.metrics)

    def write(self, folder: Path) -> None:
        """Write ``metrics.json``."""
        dump_metrics(folder / "metrics.json", self.metrics)

    def _add(self, prefix: str, metrics: Mapping[str, Any]) -> None:
        self.metrics |= {f"{prefix}_{name}": value for name, value in metrics.items()}
