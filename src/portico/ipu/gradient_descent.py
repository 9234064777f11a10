"""``IPUGradientDescentTrainer``: AllenNLP's trainer, whose steps are programs on IPUs."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from portico.compat.annotations import Batch
from portico.compat.transformers import EvalLoopOutput, TrainOutput
from portico.gradient_descent.construction import ConfigurationError
from portico.gradient_descent.run import PARTS_TURNED_OFF, DescentRun, LoopTrainer, ValidationSession
from portico.gradient_descent.trainer import GradientDescentTrainer, RegistrableTrainer
from portico.ipu.arguments import IPUTrainingArguments
from portico.ipu.config import IPUConfig
from portico.ipu.data import num_rows
from portico.ipu.optim import rebind_schedule
from portico.ipu.trainer import IPUTrainer

# As `IPUTrainingArguments.fp32` says.
_PRECISIONS = ("32-true", "16-true")


class IPUDescentRun(DescentRun):
    """A training whose learning rates are set before the forward pass, as the program also updates the weights."""

    @override
    def begin_batch(self, batch_idx: int) -> None:
        super().begin_batch(batch_idx)
        self.step_schedulers()
        self._weights_before = self._weights_to_compare()

    @override
    def prepare_optimizer_step(self) -> None:
        self._fire("on_pre_optimizer_step")


class IPUValidationSession(ValidationSession):
    """Weights the loss of each batch by its rows, so that the mean does not depend on how many rows a call takes.

    AllenNLP counts a shorter last batch as a full one; here a batch holds many of its batches.
    """

    _loss = 0.0
    _num_rows = 0

    @override
    def step(self, inputs: Batch, batch_idx: int) -> None:
        num_before = self.sums.num_batches
        super().step(inputs, batch_idx)
        if self.sums.num_batches > num_before:
            rows = num_rows(inputs)
            self._loss += rows * self.sums.batch_loss
            self._num_rows += rows

    @override
    def finish(self) -> EvalLoopOutput:
        if self._num_rows:
            self.sums.loss = self._loss / self._num_rows * self.sums.num_batches
        return super().finish()


class IPULoopTrainer(LoopTrainer, IPUTrainer):
    """Runs the batches of an AllenNLP trainer through programs; the model is trained in place."""

    run_class = IPUDescentRun
    session_class = IPUValidationSession

    @override
    def _model_to_train(self, model: nn.Module) -> nn.Module:
        return model

    @override
    def run_model(self, inputs: Batch, *, for_training: bool) -> dict[str, Any]:
        return self.call_model(self.model, inputs, is_training=for_training)

    @override
    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        try:
            return super().train(*args, **kwargs)
        finally:
            self.programs.release()


class DeviceRandomStates:
    """Saves the devices' random state in checkpoints, under the name of this class, and restores it."""

    def __init__(self, loop: IPULoopTrainer) -> None:
        self._loop = loop

    def state_dict(self) -> dict[str, Any]:
        """Return the state, or ``None`` for it before the first step."""
        program = self._loop.training_model
        return {"rng_state": None if program is None else program.rng_state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state at the next training step, when there is a program."""
        self._loop._pending_device_rng = state["rng_state"]


@RegistrableTrainer.register("ipu_gradient_descent", constructor="from_partial_objects")
class IPUGradientDescentTrainer(GradientDescentTrainer):
    """``GradientDescentTrainer`` on IPUs.

    A batch of ``data_loader`` holds the rows of one call: micro-batch x replicas x accumulation x device iterations.
    A batch of ``validation_data_loader`` holds micro-batch x replicas x device iterations of inference; the last one
    may have fewer rows. Loss and optimizer are part of the program, so AllenNLP's operations on gradients are not
    supported.

    Args:
        model: The model; it is trained in place.
        optimizer: SGD, Adam, AdamW or RMSprop of torch, or one of ``portico.ipu.backend.optim``.
        data_loader: Training batches, all of one size.
        ipu_config: How the model is spread over IPUs, or the attributes of an ``IPUConfig``.
        batch_size: Rows of a training batch, if ``data_loader`` has no ``batch_size``.
        **options: As of :class:`~portico.gradient_descent.trainer.GradientDescentTrainer`;
            ``precision`` is ``"32-true"`` (the default) or ``"16-true"``.

    Raises:
        ConfigurationError: If the arguments require what a program cannot do, before anything is written.
    """

    loop: IPULoopTrainer

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: Iterable[Any],
        *,
        ipu_config: IPUConfig | Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        _check_options(model, options)
        self.ipu_config = IPUConfig(**ipu_config) if isinstance(ipu_config, Mapping) else ipu_config or IPUConfig()
        self._batch_size = batch_size
        super().__init__(model, optimizer, data_loader, **options)
        self.optimizer = self.loop.optimizer
        scheduler: Any
        for scheduler in self.schedulers:
            rebind_schedule(getattr(scheduler, "lr_scheduler", scheduler), self.optimizer)
        # Checkpoints hold the state of everything in this list.
        self.own_callbacks = [*self.own_callbacks, DeviceRandomStates(self.loop)]

    @override
    def _make_loop(self, output_dir: str, placement: Mapping[str, Any], **parts: Any) -> IPULoopTrainer:
        precision = placement.get("precision", "32-true")
        if precision not in _PRECISIONS:
            raise ConfigurationError(
                f"`precision={precision!r}` is not supported on IPUs; use one of {', '.join(_PRECISIONS)}."
            )
        validation = self.data_loader if self.validation_data_loader is None else self.validation_data_loader
        args = IPUTrainingArguments(
            output_dir=output_dir,
            num_train_epochs=self.num_epochs,
            fp32=precision == "32-true",
            per_device_train_batch_size=self._micro_batch(self.data_loader, for_inference=False),
            per_device_eval_batch_size=self._micro_batch(validation, for_inference=True),
            **PARTS_TURNED_OFF,
        )
        return IPULoopTrainer(self, args, ipu_config=self.ipu_config, **parts)

    def _micro_batch(self, loader: Iterable[Any], *, for_inference: bool) -> int:
        sources: tuple[Any, ...] = (loader, getattr(loader, "batch_sampler", None))
        size = next((source.batch_size for source in sources if getattr(source, "batch_size", None)), self._batch_size)
        factor = self.ipu_config.batch_size_factor(for_inference)
        if size is None:
            raise ConfigurationError(
                f"The batch size of a {type(loader).__name__} is unknown, but a program is compiled for one; give "
                "`batch_size`."
            )
        if size % factor:
            kind = "validation" if for_inference else "training"
            raise ConfigurationError(
                f"The {kind} batches have {size} rows, which cannot be divided into {factor} micro-batches (replicas "
                f"x accumulation x device iterations of `ipu_config`); use a multiple of {factor}."
            )
        return size // factor


_UNSUPPORTED_OPTIONS = {
    "grad_norm": "give the optimizer `max_grad_norm`, with one of `portico.ipu.backend.optim`",
    "grad_clipping": "clip by the norm, with `max_grad_norm` of an optimizer of `portico.ipu.backend.optim`",
    "moving_average": "leave it out, and average the weights of the last checkpoints after the run",
}
_UNSUPPORTED_METHODS = {
    "get_regularization_penalty": "add the penalty to the loss in `forward`",
    "get_metrics": "return the values to count from `forward`, and count them in a batch callback",
}
_PLACEMENT_OPTIONS = ("devices", "num_nodes", "cuda_device", "distributed")


def _check_options(model: nn.Module, options: Mapping[str, Any]) -> None:
    """Refuse what AllenNLP does on the host in the middle of a step, and settings of other hardware."""
    for name, instead in _UNSUPPORTED_OPTIONS.items():
        if options.get(name) is not None and options[name] is not False:
            raise ConfigurationError(
                f"`{name}` needs the gradients on the host, but on IPUs the whole step is a program; {instead}."
            )
    for name, instead in _UNSUPPORTED_METHODS.items():
        if hasattr(model, name):
            raise ConfigurationError(
                f"{type(model).__name__} has `{name}`, which must run in every step, but on IPUs Python runs only to "
                f"compile the program; {instead}."
            )
    if options.get("num_gradient_accumulation_steps", 1) != 1:
        raise ConfigurationError(
            f"`num_gradient_accumulation_steps={options['num_gradient_accumulation_steps']}` accumulates on the host; "
            "set `gradient_accumulation_steps` of `ipu_config`, and let `data_loader` return the rows of all "
            "micro-batches."
        )
    for name in _PLACEMENT_OPTIONS:
        if options.get(name):
            raise ConfigurationError(
                f"`{name}={options[name]!r}` does not choose IPUs; set `replication_factor` and `layers_per_ipu` of "
                "`ipu_config`."
            )
    for name in ("accelerator", "strategy"):
        if options.get(name) not in (None, "ipu"):
            raise ConfigurationError(
                f"`{name}={options[name]!r}` does not choose IPUs; leave it out, or use `GradientDescentTrainer`."
            )
