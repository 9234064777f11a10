"""TensorBoard's files of a run."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.trainer_pt_utils import find_batch_size

from portico.gradient_descent.construction import Registrable
from portico.gradient_descent.errors import ConfigurationError


class SummaryFiles:
    """One folder for each split; none is made before something is written.

    Args:
        folder: Where the folders of the splits lie; without one nothing is written.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def add_scalar(self, split: str, name: str, value: Any, step: int) -> None:
        """Write a number; anything else is left out."""
        number = value.item() if hasattr(value, "item") else value
        if self._folder is not None and isinstance(number, int | float):
            self._writer(self._folder / split).add_scalar(name, number, step)

    def add_histogram(self, split: str, name: str, values: Any, step: int) -> None:
        """Write the distribution of a tensor's values; anything else is left out."""
        if self._folder is not None and isinstance(values, torch.Tensor):
            flat = values.detach().float().cpu().numpy().flatten()
            self._writer(self._folder / split).add_histogram(name, flat, step)

    def close(self) -> None:
        """Flush and close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _writer(self, folder: Path) -> Any:
        if folder.name not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            self._writers[folder.name] = SummaryWriter(str(folder))
        return self._writers[folder.name]


def tensorboard_is_installed() -> bool:
    """Tell whether TensorBoard's package is there."""
    return find_spec("tensorboard") is not None


Values = Iterator[tuple[str, Any]]


def parameter_statistics(model: nn.Module) -> Values:
    """Yield mean and standard deviation of every parameter and gradient."""
    for name, parameter in model.named_parameters():
        yield from _moments("parameter", name, parameter.detach())
        gradient = parameter.grad
        if gradient is not None:
            # The present values of a sparse gradient.
            yield from _moments("gradient", name, gradient._values() if gradient.is_sparse else gradient)


def learning_rates(model: nn.Module, optimizer: torch.optim.Optimizer) -> Values:
    """Yield the learning rate of every parameter, 0 for a frozen one."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if "lr" in group:
                yield f"learning_rate/{names[parameter]}", group["lr"] * parameter.requires_grad


def relative_updates(model: nn.Module, param_updates: Mapping[str, torch.Tensor]) -> Values:
    """Yield the norm of each parameter's update over that of the parameter.

    Args:
        model: The model.
        param_updates: By how much a step changed each parameter, by name.
    """
    for name, parameter in model.named_parameters():
        norm = torch.linalg.vector_norm(parameter.detach()).cpu()
        update = torch.linalg.vector_norm(param_updates[name])
        yield f"gradient_update/{name}", update / (norm + torch.finfo(norm.dtype).tiny)


def _moments(kind: str, name: str, values: torch.Tensor) -> Values:
    if values.numel() > 0:
        yield f"{kind}_mean/{name}", values.mean()
    if values.numel() > 1:
        yield f"{kind}_std/{name}", values.std()


def log_activations(model: nn.Module, is_due: Callable[[], bool], write: Callable[[str, Any], None]) -> list[Any]:
    """Write the outputs of every module with a true ``should_log_activations``, whenever it is time.

    Args:
        model: Whose modules are watched.
        is_due: Tells whether the present forward pass is one to write.
        write: Called with a name and a tensor.

    Returns:
        Handles whose ``remove`` ends it.
    """

    def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
        if is_due():
            for suffix, output in _named(outputs):
                write(f"activation_histogram/{type(module)}{suffix}", output)

    watched = [module for module in model.modules() if getattr(module, "should_log_activations", False)]
    return [module.register_forward_hook(hook) for module in watched]


def _named(outputs: Any) -> list[tuple[str, Any]]:
    if isinstance(outputs, Mapping):
        return [(f"_{key}", output) for key, output in outputs.items()]
    if isinstance(outputs, list | tuple):
        return [(f"_{index}", output) for index, output in enumerate(outputs)]
    return [("", outputs)]


logger = logging.getLogger(__name__)


class TensorboardWriter(Registrable):
    """Writes to ``log/train`` and ``log/validation`` in the folder of the run; no folder is made before that.

    Args:
        serialization_dir: Folder of the run; without one nothing is written.
        summary_interval: Optimizer steps between two writings of most statistics.
        histogram_interval: Optimizer steps between two writings of histograms (parameters; activations of modules
            with a true ``should_log_activations``) and of relative parameter updates; ``None`` for never.
        batch_size_interval: Optimizer steps between two writings of batch sizes; ``None`` for never.
        should_log_parameter_statistics: Write mean and deviation of parameters and gradients.
        should_log_learning_rate: Write the learning rate of each parameter.
        get_batch_num_total: Returns the number of the present step; the trainer sets it.

    Raises:
        ConfigurationError: If an interval is not positive, or TensorBoard is not installed.
    """

    default_implementation = "default"

    def __init__(
        self,
        serialization_dir: str | None = None,
        summary_interval: int = 100,
        histogram_interval: int | None = None,
        batch_size_interval: int | None = None,
        should_log_parameter_statistics: bool = True,
        should_log_learning_rate: bool = False,
        get_batch_num_total: Callable[[], int] | None = None,
    ) -> None:
        intervals = {
            "summary_interval": summary_interval,
            "histogram_interval": histogram_interval,
            "batch_size_interval": batch_size_interval,
        }
        for name, interval in intervals.items():
            if interval is not None and interval < 1:
                raise ConfigurationError(f"`{name}={interval}` cannot be used; set it to an int >= 1, or to None.")
        if serialization_dir is not None and not tensorboard_is_installed():
            raise ConfigurationError(
                "TensorBoard is not installed; install it with `pip install 'portico[allennlp]'`, or leave "
                "`tensorboard_writer` out."
            )
        self._files = SummaryFiles(None if serialization_dir is None else Path(serialization_dir) / "log")
        self._summary_interval = summary_interval
        self._histogram_interval = histogram_interval
        self._batch_size_interval = batch_size_interval
        self._should_log_parameter_statistics = should_log_parameter_statistics
        self._should_log_learning_rate = should_log_learning_rate
        self.get_batch_num_total = get_batch_num_total or (lambda: 0)
        self._hooks: list[Any] = []
        self.reset_epoch()

    # A run

    def begin(self, model: nn.Module) -> None:
        """Begin to watch the activations of ``model``, if histograms are written."""
        if self._histogram_interval is not None and not self._hooks:
            self._hooks = log_activations(model, self.should_log_histograms_this_batch, self.add_train_histogram)

    def close(self) -> None:
        """Flush and close the files, and stop watching activations."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._files.close()

    def reset_epoch(self) -> None:
        """Begin the mean of the batch sizes anew."""
        self._cumulative_batch_group_size = 0
        self._batches_this_epoch = 0

    # When

    def should_log_this_batch(self) -> bool:
        """Tell whether the present step is one whose statistics are written."""
        return self.get_batch_num_total() % self._summary_interval == 0

    def should_log_histograms_this_batch(self) -> bool:
        """Tell whether the present step is one whose histograms are written."""
        interval = self._histogram_interval
        return interval is not None and self.get_batch_num_total() % interval == 0

    # What

    def log_batch(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch_grad_norm: float | None,
        metrics: Mapping[str, Any],
        batch_group: Iterable[Any],
        param_updates: Mapping[str, torch.Tensor] | None,
    ) -> None:
        """Write what is due at the present step.

        Args:
            model: The model, its gradients still there.
            optimizer: The optimizer.
            batch_grad_norm: Norm of the gradients before clipping, if it was measured.
            metrics: Metrics of the epoch so far.
            batch_group: Batches of the step.
            param_updates: By how much the step changed each parameter, by name; needed with histograms.
        """
        if self.should_log_this_batch():
            if self._should_log_parameter_statistics:
                self.log_parameter_and_gradient_statistics(model, batch_grad_norm)
            if self._should_log_learning_rate:
                self.log_learning_rates(model, optimizer)
            self.add_train_scalar("loss/loss_train", metrics["loss"])
            self.log_metrics({f"epoch_metrics/{name}": value for name, value in metrics.items()})
        if self.should_log_histograms_this_batch():
            assert param_updates is not None, "the trainer measures updates at these steps"
            self.log_histograms(model)
            self.log_gradient_updates(model, param_updates)
        if self._batch_size_interval:
            self._log_batch_size(batch_group)

    def log_parameter_and_gradient_statistics(self, model: nn.Module, batch_grad_norm: float | None) -> None:
        """Write mean and standard deviation of every parameter and gradient, and the norm of all gradients."""
        self._add_train_scalars(parameter_statistics(model))
        if batch_grad_norm is not None:
            self.add_train_scalar("gradient_norm", batch_grad_norm)

    def log_learning_rates(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the learning rate of every parameter, 0 for a frozen one."""
        self._add_train_scalars(learning_rates(model, optimizer))

    def log_histograms(self, model: nn.Module) -> None:
        """Write histograms of the parameters, of those that the model names if it names any."""
        chosen = getattr(model, "get_parameters_for_histogram_tensorboard_logging", None)
        names = None if chosen is None else set(chosen())
        for name, parameter in model.named_parameters():
            if names is None or name in names:
                self.add_train_histogram(f"parameter_histogram/{name}", parameter)

    def log_gradient_updates(self, model: nn.Module, param_updates: Mapping[str, torch.Tensor]) -> None:
        """Write the norm of each parameter's update over that of the parameter."""
        self._add_train_scalars(relative_updates(model, param_updates))

    def log_metrics(
        self,
        train_metrics: Mapping[str, Any],
        val_metrics: Mapping[str, Any] | None = None,
        epoch: int | None = None,
    ) -> None:
        """Write metrics of training and validation.

        Args:
            train_metrics: Metrics of training.
            val_metrics: Metrics of validation.
            epoch: Step to write them at; by default that of training.
        """
        for name, value in train_metrics.items():
            self.add_train_scalar(name, value, epoch)
        for name, value in (val_metrics or {}).items():
            self.add_validation_scalar(name, value, epoch)

    def log_memory_usage(self, cpu_memory_usage: Mapping[int, float], gpu_memory_usage: Mapping[int, float]) -> None:
        """Write the memory of each process, of all of them, and of each GPU, in MB."""
        for worker, memory in cpu_memory_usage.items():
            self.add_train_scalar(f"memory_usage/worker_{worker}_cpu", memory)
        self.add_train_scalar("memory_usage/cpu", sum(cpu_memory_usage.values()))
        for gpu, memory in gpu_memory_usage.items():
            self.add_train_scalar(f"memory_usage/gpu_{gpu}", memory)

    def add_train_scalar(self, name: str, value: Any, timestep: int | None = None) -> None:
        """Write a number of training, at the present step or at ``timestep``."""
        self._files.add_scalar("train", name, value, timestep or self.get_batch_num_total())

    def add_validation_scalar(self, name: str, value: Any, timestep: int | None = None) -> None:
        """Write a number of validation, at the present step or at ``timestep``."""
        self._files.add_scalar("validation", name, value, timestep or self.get_batch_num_total())

    def add_train_histogram(self, name: str, values: Any) -> None:
        """Write the distribution of a tensor's values; anything else is left out."""
        self._files.add_histogram("train", name, values, self.get_batch_num_total())

    def _add_train_scalars(self, values: Iterable[tuple[str, Any]]) -> None:
        for name, value in values:
            self.add_train_scalar(name, value)

    def _log_batch_size(self, batch_group: Iterable[Any]) -> None:
        assert self._batch_size_interval is not None
        size = sum(find_batch_size(batch) or 0 for batch in batch_group)
        self._batches_this_epoch += 1
        self._cumulative_batch_group_size += size
        if (self._batches_this_epoch - 1) % self._batch_size_interval == 0:
            mean = self._cumulative_batch_group_size / self._batches_this_epoch
            logger.info("current batch size: %d, mean batch size: %s", size, mean)
            self.add_train_scalar("current_batch_size", size)
            self.add_train_scalar("mean_batch_size", mean)


TensorboardWriter.register("default")(TensorboardWriter)
