"""What a training measures: losses, the model's metrics, memory, the best epoch, and what ``train()`` returns."""

import datetime
import json
import logging
import math
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from portico.compat.transformers import denumpify_detensorize
from portico.compat.tree import map_tensors
from portico.distributed.accelerator import Accelerator
from portico.gradient_descent.construction import ConfigurationError
from portico.trust.disk import write_text

logger = logging.getLogger(__name__)

_MB = 1024 * 1024
# Methods that identify counters: AllenNLP's models, AllenNLP's metrics, torchmetrics' metrics.
_COUNTER_METHODS = (("get_metrics",), ("get_metric", "reset"), ("update", "compute", "reset"))
_OF_MODULES = frozenset(vars(nn.Module()))
_SIGNS = {"+": 1.0, "-": -1.0}
_SETTINGS = {"tracked_metrics", "_patience", "_has_warned"}


@dataclass
class LossSums:
    """Sums over the steps (or validation batches with a loss) of an epoch, and the losses of the current step.

    ``loss`` includes the regularization penalty; ``reg_loss`` is ``None`` if the model has none.
    """

    loss: float = 0.0
    reg_loss: float | None = None
    num_batches: int = 0
    batch_loss: float = 0.0
    batch_reg_loss: float | None = None

    def begin_batch(self) -> None:
        self.batch_loss = 0.0
        self.batch_reg_loss = None

    def add(self, outputs: dict[str, Any], group_size: int = 1) -> None:
        """Add the loss of one batch of a step that accumulates ``group_size`` batches."""
        self.batch_loss += (outputs["loss"].detach() / group_size).item()
        penalty = outputs.get("reg_loss")
        if penalty is not None:
            self.batch_reg_loss = (self.batch_reg_loss or 0.0) + (penalty.detach() / group_size).item()

    def end_batch(self) -> None:
        self.num_batches += 1
        self.loss += self.batch_loss
        if self.batch_reg_loss is not None:
            self.reg_loss = (self.reg_loss or 0.0) + self.batch_reg_loss

    def reduce(self, accelerator: Accelerator) -> "LossSums":
        if accelerator.num_processes == 1:
            return self
        here = torch.tensor(
            [self.loss, self.reg_loss or 0.0, self.num_batches], dtype=torch.float64, device=accelerator.device
        )
        loss, reg_loss, num_batches = accelerator.reduce(here).tolist()
        return LossSums(loss, None if self.reg_loss is None else reg_loss, int(num_batches))


def collect_metrics(model: nn.Module, sums: LossSums) -> dict[str, Any]:
    """Return the metrics of the epoch so far, and the loss of the current step."""
    metrics = _model_metrics(model, reset=False)
    metrics["batch_loss"] = sums.batch_loss
    if sums.batch_reg_loss is not None:
        metrics["batch_reg_loss"] = sums.batch_reg_loss
    return {**metrics, **_means(sums)}


def epoch_metrics(model: nn.Module, sums: LossSums, accelerator: Accelerator) -> dict[str, Any]:
    """Return the metrics of an epoch over all processes, and reset the model's metrics."""
    metrics = _model_metrics(model, reset=True)
    for name, value in metrics.items():
        if accelerator.num_processes > 1 and isinstance(value, int | float):
            here = torch.tensor(float(value), dtype=torch.float64, device=accelerator.device)
            metrics[name] = accelerator.reduce(here, "mean").item()
    return {**metrics, **_means(sums.reduce(accelerator))}


class ModelMetrics:
    """What a model has counted in the current epoch; a checkpoint within an epoch contains it.

    Counters are the modules of the model with ``get_metrics``, and the metrics of AllenNLP and torchmetrics that the
    model holds, also in lists and dicts. Their attributes are saved if they are plain values or tensors and have
    changed since training began: unchanged attributes are configuration. What a model counts in buffers, or
    returns from ``get_extra_state``, is part of its weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._initial = map_tensors(_content, _counts(model))

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of this process, the paths of counts that are not on the CPU, and the model's metrics."""
        counts = {
            path: count
            for path, count in _counts(self._model).items()
            if map_tensors(_content, count) != self._initial.get(path)
        }
        on_cpu = map_tensors(torch.Tensor.cpu, counts)
        device_index = torch.Tensor.get_device
        return {
            "counts": on_cpu,
            "elsewhere": [
                path
                for path, count in counts.items()
                if map_tensors(device_index, count) != map_tensors(device_index, on_cpu[path])
            ],
            "metrics": {name: repr(value) for name, value in _model_metrics(self._model, reset=False).items()},
        }

    def load_state_dict(self, state: Mapping[str, Any] | None, device: torch.device) -> None:
        """Restore the counts, on ``device`` where they were not on the CPU; warn of metrics that are incomplete.

        ``None`` is the state in the checkpoint of an older version.
        """
        if state is None:
            counted = {"all metrics": ""} if hasattr(self._model, "get_metrics") else {}
            state = {"counts": {}, "elsewhere": [], "metrics": counted}
        attributes_of = {path: vars(counter) for path, counter in _counters(self._model)}
        for path, count in state["counts"].items():
            owner, _, name = path.rpartition("/")
            attributes = attributes_of.get(owner, {})
            if path in state["elsewhere"]:
                count = map_tensors(lambda tensor: tensor.to(device), count)
            if isinstance(current := attributes.get(name), dict):
                # In place: it may be a Counter or a defaultdict.
                current.clear()
                current.update(count)
            else:
                attributes[name] = count.numpy() if isinstance(current, np.ndarray) else count
        try:
            metrics = _model_metrics(self._model, reset=False)
        except Exception:  # whatever a model raises that has counted nothing, such as a division by zero
            metrics = {}
        if incomplete := [name for name, value in state["metrics"].items() if repr(metrics.get(name)) != value]:
            logger.warning(
                "The checkpoint does not contain all that the model has counted for %s: in the current epoch its "
                "training metrics cover only the batches after the resume. Count in buffers of the model, in plain "
                "attributes of a module with `get_metrics`, or in a metric of AllenNLP or torchmetrics.",
                ", ".join(incomplete),
            )


def peak_memory_mb(accelerator: Accelerator) -> dict[int, float]:
    """Return the peak resident memory of each process in MiB, by rank. Every process must call this."""
    # Linux counts in kilobytes, macOS in bytes.
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (_MB if sys.platform == "darwin" else 1024)
    peak = torch.tensor([here], dtype=torch.float64, device=accelerator.device)
    return dict(enumerate(accelerator.gather(peak).tolist()))


def gpu_memory_mb() -> dict[int, float]:
    """Return the peak memory that torch has allocated on each GPU of this process in MiB, by index."""
    return {index: torch.cuda.max_memory_allocated(index) / _MB for index in range(torch.cuda.device_count())}


class MetricTracker:
    """Decides whether an epoch was the best so far, and whether to stop.

    ``best_epoch`` is the epoch of the best value, from 0, and ``best_epoch_metrics`` are all its validation metrics.

    Args:
        metric_name: Name of a metric, with ``+`` in front if higher is better, ``-`` if lower is. Several names mean
            the signed sum of their metrics.
        patience: Epochs without improvement after which to stop; ``None`` never stops.

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
        self.tracked_metrics = [_parse_metric_name(name) for name in names]
        if not names:
            raise ConfigurationError("`validation_metric` is an empty list; name at least one metric, as '-loss'.")
        self._patience = patience
        self._has_warned = False
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
        """Record the metrics of an epoch; only strictly better values count as an improvement.

        Any number is better than NaN. In AllenNLP nothing is, so that a NaN in the first epoch stays the best.
        """
        score = self.combined_score(metrics)
        best = self._best_so_far
        self._is_best_so_far = best is None or score > best or (math.isnan(best) and not math.isnan(score))
        if math.isnan(score):
            self._warn_of_nan(metrics)
        if self._is_best_so_far:
            self._best_so_far = score
            self._epochs_with_no_improvement = 0
            self.best_epoch = self._epoch_number
        else:
            self._epochs_with_no_improvement += 1
        self._epoch_number += 1

    def _warn_of_nan(self, metrics: Mapping[str, float]) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        names = [name for _, name in self.tracked_metrics if math.isnan(metrics[name])]
        logger.warning(
            "%s of epoch %d is NaN, which is worse than any number: the epoch counts towards the patience, and its "
            "weights are kept only as long as no other epoch has a number. Lower the learning rate, or let the metric "
            "return a number.",
            " and ".join(names) or "The sum of the tracked metrics",
            self._epoch_number,
        )

    def skip_epoch(self) -> None:
        """Record an epoch without validation: it does not count towards the patience and cannot be the best."""
        self._is_best_so_far = False
        self._epoch_number += 1

    def combined_score(self, metrics: Mapping[str, float]) -> float:
        """Return the signed sum of the tracked metrics; higher is better."""
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
        """Return whether the last value is the best one; true before the first value."""
        return self._is_best_so_far

    def should_stop_early(self) -> bool:
        return self._patience is not None and self._epochs_with_no_improvement >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the configuration."""
        return {name.removeprefix("_"): copy(value) for name, value in vars(self).items() if name not in _SETTINGS}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for name in vars(self).keys() - _SETTINGS:
            setattr(self, name, copy(state_dict[name.removeprefix("_")]))


class TrainingReport:
    """Collects the metrics of a training under AllenNLP's keys.

    Args:
        tracker: It knows the best epoch.
        start_epoch: First epoch of this run.
        earlier: Metrics of the run that is resumed. They are the metrics until this run completes an epoch: one that
            has nothing left to train, as if it were finished, keeps them, where AllenNLP forgets them.

    Attributes:
        metrics: The metrics so far.
        is_earlier: Whether no epoch has been added yet.
    """

    def __init__(self, tracker: MetricTracker, start_epoch: int, earlier: Mapping[str, Any] | None = None) -> None:
        self._tracker = tracker
        self._start_epoch = start_epoch
        self._start_time = time.time()
        self.is_earlier = True
        self.metrics: dict[str, Any] = {}
        self._begin(earlier or {})

    def _begin(self, metrics: Mapping[str, Any]) -> None:
        self.metrics = {**metrics, "best_epoch": self._tracker.best_epoch}
        self._add("best_validation", self._tracker.best_epoch_metrics)

    def add_epoch(self, epoch: int, train_metrics: Mapping[str, Any], validation_metrics: Mapping[str, Any]) -> None:
        """Add the metrics of an epoch whose validation has been tracked."""
        if self.is_earlier:
            self.is_earlier = False
            self._begin({})
        metrics = self.metrics
        for name, value in train_metrics.items():
            if name.endswith("_memory_MB"):
                metrics[f"peak_{name}"] = max(metrics.get(f"peak_{name}", 0), value)
        metrics["training_duration"] = str(datetime.timedelta(seconds=time.time() - self._start_time))
        metrics["training_start_epoch"] = self._start_epoch
        # The epochs before this one: AllenNLP 1 counts so.
        metrics["training_epochs"] = epoch - self._start_epoch
        metrics["epoch"] = epoch
        self._add("training", train_metrics)
        self._add("validation", validation_metrics)
        if self._tracker.is_best_so_far():
            metrics["best_epoch"] = epoch
            self._add("best_validation", validation_metrics)
            self._tracker.best_epoch_metrics = dict(validation_metrics)

    def progress_numbers(self) -> dict[str, float]:
        """Return the numbers to log after an epoch: its metrics, and the metrics of the best epoch."""
        return {
            name: value
            for name, value in self.metrics.items()
            if name.startswith(("training_", "best_"))
            and isinstance(value, int | float)
            and not name.endswith(("_memory_MB", "_start_epoch", "_epochs"))
        }

    def _add(self, prefix: str, metrics: Mapping[str, Any]) -> None:
        self.metrics |= {f"{prefix}_{name}": value for name, value in metrics.items()}


def dump_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics`` as indented JSON, numbers of torch and numpy as plain ones."""
    write_text(path, json.dumps(denumpify_detensorize(metrics), indent=2, default=str))


def _counts(model: nn.Module) -> dict[str, Any]:
    """Return copies of the plain attributes of all counters, by path."""
    counts = {}
    for path, counter in _counters(model):
        for name in vars(counter).keys() - _OF_MODULES:
            with suppress(TypeError):
                counts[f"{path}/{name}"] = _plain(vars(counter)[name])
    return counts


def _content(tensor: torch.Tensor) -> bytes:
    # Nested values with bytes are compared by `==`, NaN included. A copy has the strides that `view` needs.
    flat = tensor.cpu().flatten().clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes()


def _counters(value: object, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the counters that ``value`` is or holds, each once, with its path."""
    seen = set() if seen is None else seen
    is_counter = any(all(hasattr(type(value), name) for name in methods) for methods in _COUNTER_METHODS)
    parts: Mapping[Any, Any] = {}
    if isinstance(value, Mapping):
        parts = value
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    elif is_counter or isinstance(value, nn.Module):
        parts = getattr(value, "__dict__", {})
    if not parts or id(value) in seen:
        return
    seen.add(id(value))
    if is_counter:
        yield path, value
    for name, part in list(parts.items()):
        yield from _counters(part, f"{path}/{name}", seen)


def _plain(value: object) -> Any:
    """Return a copy of a plain value, numpy's as Python's or torch's; raise ``TypeError`` for anything else."""
    # Exact types, because checkpoints are loaded with `weights_only=True`. A gradient means an activation.
    if type(value) is torch.Tensor and not value.requires_grad:
        return value.clone()
    if isinstance(value, np.generic | np.ndarray):
        return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value.item()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set) and type(value) in (list, tuple, set):
        return type(value)(map(_plain, value))
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"a {type(value).__name__} is not a plain value")


def _parse_metric_name(name: object) -> tuple[float, str]:
    if not isinstance(name, str) or not name.strip("+-"):
        raise ConfigurationError(
            f"`validation_metric={name!r}` does not name a metric; set it to a name with a sign, as '-loss'."
        )
    if name[0] not in _SIGNS:
        raise ConfigurationError(
            f"`validation_metric={name!r}` must start with + or -; set '+{name}' if higher is better, '-{name}' if "
            "lower is."
        )
    return _SIGNS[name[0]], name[1:]


def _model_metrics(model: nn.Module, *, reset: bool) -> dict[str, Any]:
    get_metrics = getattr(model, "get_metrics", None)
    # Plain numbers, because checkpoints are loaded with `weights_only=True`.
    return denumpify_detensorize(dict(get_metrics(reset=reset))) if get_metrics is not None else {}


def _means(sums: LossSums) -> dict[str, float]:
    # Without batches the sums are 0, and so are the means.
    means = {"loss": sums.loss / max(sums.num_batches, 1)}
    if sums.reg_loss is not None:
        means["reg_loss"] = sums.reg_loss / max(sums.num_batches, 1)
    return means
