"""Training statistics for TensorBoard, under AllenNLP's tags."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from portico.compat.transformers import find_batch_size
from portico.gradient_descent.construction import ConfigurationError, Registrable
from portico.trust.disk import remove_detour

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)


def tensorboard_is_installed() -> bool:
    return find_spec("tensorboard") is not None


@dataclass(eq=False, repr=False)
class TensorboardWriter(Registrable):
    """Writes to ``log/train`` and ``log/validation`` in the folder of the run; a folder is created when it is needed.

    Args:
        serialization_dir: Folder of the run; without one nothing is written.
        summary_interval: Optimizer steps between two summaries.
        histogram_interval: Optimizer steps between two histograms (of parameters, and of the activations of modules
            with a true ``should_log_activations``) and relative parameter updates; ``None`` for never.
        batch_size_interval: Optimizer steps between two batch sizes; ``None`` for never.
        should_log_parameter_statistics: Write mean and standard deviation of parameters and gradients.
        should_log_learning_rate: Write the learning rate of each parameter.
        get_batch_num_total: Returns the number of the current step; the trainer sets it.

    Raises:
        ConfigurationError: If an interval is not positive, or TensorBoard is not installed.
    """

    default_implementation = "default"

    serialization_dir: str | None = None
    summary_interval: int = 100
    histogram_interval: int | None = None
    batch_size_interval: int | None = None
    should_log_parameter_statistics: bool = True
    should_log_learning_rate: bool = False
    get_batch_num_total: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        for name in ("summary_interval", "histogram_interval", "batch_size_interval"):
            interval = getattr(self, name)
            if interval is not None and interval < 1:
                raise ConfigurationError(f"`{name}={interval}` cannot be used; set it to an int >= 1, or to None.")
        if self.serialization_dir is not None and not tensorboard_is_installed():
            raise ConfigurationError(
                "TensorBoard is not installed; install it with `pip install 'portico[allennlp]'`, or leave "
                "`tensorboard_writer` out."
            )
        self._folder = None if self.serialization_dir is None else Path(self.serialization_dir) / "log"
        self._writers: dict[str, SummaryWriter] = {}
        self._hooks: list[RemovableHandle] = []
        self.reset_epoch()

    def begin(self, model: nn.Module) -> None:
        """Start to capture the activations of ``model``, if histograms are written."""
        if self.histogram_interval is not None and not self._hooks:
            # A function, not the bound method: a copy of the model must not copy the writer.
            self._hooks = [
                module.register_forward_hook(lambda module, _, outputs: self._log_activations(module, outputs))
                for module in model.modules()
                if getattr(module, "should_log_activations", False)
            ]

    def close(self) -> None:
        """Flush and close the files, and stop capturing activations."""
        for hook in self._hooks:
            hook.remove()
        for writer in self._writers.values():
            writer.close()
        self._hooks = []
        self._writers = {}

    def reset_epoch(self) -> None:
        self._cumulative_batch_group_size = 0
        self._batches_this_epoch = 0

    def should_log_this_batch(self) -> bool:
        return self._step() % self.summary_interval == 0

    def should_log_histograms_this_batch(self) -> bool:
        interval = self.histogram_interval
        return interval is not None and self._step() % interval == 0

    def log_batch(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch_grad_norm: torch.Tensor | float | None,
        metrics: Mapping[str, Any],
        batch_group: Iterable[Any],
        param_updates: Mapping[str, torch.Tensor] | None,
    ) -> None:
        """Write what is due at the current step, before the gradients are zeroed.

        ``batch_grad_norm`` is the norm before clipping, if it was measured; ``metrics`` cover the epoch so far.
        ``param_updates``, by how much the step changed each parameter, are needed when histograms are due.
        """
        if self.should_log_this_batch():
            if self.should_log_parameter_statistics:
                self.log_parameter_and_gradient_statistics(model, batch_grad_norm)
            if self.should_log_learning_rate:
                self.log_learning_rates(model, optimizer)
            self.add_train_scalar("loss/loss_train", metrics["loss"])
            self.log_metrics({f"epoch_metrics/{name}": value for name, value in metrics.items()})
        if self.should_log_histograms_this_batch():
            assert param_updates is not None, "the trainer measures updates at these steps"
            self.log_histograms(model)
            self.log_gradient_updates(model, param_updates)
        if self.batch_size_interval:
            size = sum(find_batch_size(batch) or 0 for batch in batch_group)
            self._batches_this_epoch += 1
            self._cumulative_batch_group_size += size
            if (self._batches_this_epoch - 1) % self.batch_size_interval == 0:
                mean = self._cumulative_batch_group_size / self._batches_this_epoch
                logger.info("current batch size: %d, mean batch size: %s", size, mean)
                self.add_train_scalar("current_batch_size", size)
                self.add_train_scalar("mean_batch_size", mean)

    def log_parameter_and_gradient_statistics(
        self, model: nn.Module, batch_grad_norm: torch.Tensor | float | None
    ) -> None:
        """Write mean and standard deviation of every parameter and gradient, and the norm of all gradients."""
        for name, parameter in model.named_parameters():
            self._log_moments("parameter", name, parameter.detach())
            gradient = parameter.grad
            if gradient is not None:
                # Of a sparse gradient only the values that are present.
                self._log_moments("gradient", name, gradient._values() if gradient.is_sparse else gradient)
        if batch_grad_norm is not None:
            self.add_train_scalar("gradient_norm", batch_grad_norm)

    def log_learning_rates(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the learning rate of every parameter, 0 for a frozen one."""
        names = {parameter: name for name, parameter in model.named_parameters()}
        for group in optimizer.param_groups:
            for parameter in group["params"] if "lr" in group else ():
                rate = group["lr"] * parameter.requires_grad
                self.add_train_scalar(f"learning_rate/{names[parameter]}", rate)

    def log_histograms(self, model: nn.Module) -> None:
        """Write histograms of the parameters; a model may choose which."""
        chosen = getattr(model, "get_parameters_for_histogram_tensorboard_logging", None)
        names = None if chosen is None else set(chosen())
        for name, parameter in model.named_parameters():
            if names is None or name in names:
                self.add_train_histogram(f"parameter_histogram/{name}", parameter)

    def log_gradient_updates(self, model: nn.Module, param_updates: Mapping[str, torch.Tensor]) -> None:
        """Write the norm of each parameter's update divided by the norm of the parameter."""
        for name, parameter in model.named_parameters():
            norm = torch.linalg.vector_norm(parameter.detach()).cpu()
            update = torch.linalg.vector_norm(param_updates[name])
            self.add_train_scalar(f"gradient_update/{name}", update / (norm + torch.finfo(norm.dtype).tiny))

    def log_metrics(
        self, train_metrics: Mapping[str, Any], val_metrics: Mapping[str, Any] | None = None, epoch: int | None = None
    ) -> None:
        """Write metrics of training and validation, at the current step or at ``epoch``."""
        for name, value in train_metrics.items():
            self.add_train_scalar(name, value, epoch)
        for name, value in (val_metrics or {}).items():
            self.add_validation_scalar(name, value, epoch)

    def log_memory_usage(self, cpu_memory_usage: Mapping[int, float], gpu_memory_usage: Mapping[int, float]) -> None:
        """Write the memory of each process, their sum, and the memory of each GPU, in MiB."""
        for worker, memory in cpu_memory_usage.items():
            self.add_train_scalar(f"memory_usage/worker_{worker}_cpu", memory)
        self.add_train_scalar("memory_usage/cpu", sum(cpu_memory_usage.values()))
        for gpu, memory in gpu_memory_usage.items():
            self.add_train_scalar(f"memory_usage/gpu_{gpu}", memory)

    def add_train_scalar(self, name: str, value: object, timestep: int | None = None) -> None:
        """Write a number of training, at the current step or at ``timestep``; other values are ignored."""
        self._add_scalar("train", name, value, timestep)

    def add_validation_scalar(self, name: str, value: object, timestep: int | None = None) -> None:
        """Write a number of validation; see :meth:`add_train_scalar`."""
        self._add_scalar("validation", name, value, timestep)

    def add_train_histogram(self, name: str, values: object) -> None:
        """Write the distribution of a tensor's values; anything but a tensor is ignored."""
        if self._folder is not None and isinstance(values, torch.Tensor):
            flat = values.detach().float().cpu().numpy().flatten()
            self._writer(self._folder / "train").add_histogram(name, flat, self._step())

    def _add_scalar(self, split: str, name: str, value: object, timestep: int | None) -> None:
        number = value.item() if hasattr(value, "item") else value
        if self._folder is not None and isinstance(number, int | float):
            self._writer(self._folder / split).add_scalar(name, number, timestep or self._step())

    def _step(self) -> int:
        return 0 if self.get_batch_num_total is None else self.get_batch_num_total()

    def _writer(self, folder: Path) -> "SummaryWriter":
        if folder.name not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            remove_detour(folder.parent)
            remove_detour(folder)
            self._writers[folder.name] = SummaryWriter(str(folder))
        return self._writers[folder.name]

    def _log_moments(self, kind: str, name: str, values: torch.Tensor) -> None:
        if values.numel() > 0:
            self.add_train_scalar(f"{kind}_mean/{name}", values.mean())
        if values.numel() > 1:
            self.add_train_scalar(f"{kind}_std/{name}", values.std())

    def _log_activations(self, module: nn.Module, outputs: object) -> None:
        if not self.should_log_histograms_this_batch():
            return
        if isinstance(outputs, list | tuple):
            outputs = dict(enumerate(outputs))
        named = (
            {f"_{key}": output for key, output in outputs.items()} if isinstance(outputs, Mapping) else {"": outputs}
        )
        for suffix, output in named.items():
            self.add_train_histogram(f"activation_histogram/{type(module)}{suffix}", output)


TensorboardWriter.register("default")(TensorboardWriter)
