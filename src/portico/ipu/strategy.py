"""``IPUStrategy``: a Lightning run whose steps are programs on IPUs."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.utils.data import DataLoader
from typing_extensions import override

from portico.annotations import Nested
from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.config import IPUConfig
from portico.ipu.data import poptorch_loader
from portico.ipu.precision import IPUPrecision
from portico.ipu.program import ProgramPool, TracedStep, mean_loss, step_arguments
from portico.loop.module import TrainerModule


class IPUStrategy(SingleDeviceStrategy):
    """Runs steps as programs on IPUs.

    If the module has an attribute ``ipu_model``, its steps stay on the host and call
    ``self.trainer.strategy.execute(...)`` to run that model (*host-step mode*). Otherwise each whole step is a program
    (*traced-step mode*). A training program does forward passes, backward passes and weight updates of
    ``device_iterations x gradient accumulation x replicas`` micro-batches, which Lightning counts as one step.

    Args:
        ipu_config: How the model is spread over IPUs.
        training_opts: ``poptorch.Options`` for training, instead of a configuration.
        inference_opts: ``poptorch.Options`` for everything else, instead of a configuration.
        accelerator: Set by Lightning.
        checkpoint_io: Set by Lightning.
        precision_plugin: An :class:`~portico.ipu.precision.IPUPrecision`, or Lightning's choice.

    Attributes:
        parallel_devices: One for each replica, as chosen by ``devices``.

    Raises:
        InputError: If the module or the trainer requires what a program cannot do.
    """

    strategy_name = "ipu"

    def __init__(
        self,
        ipu_config: IPUConfig | None = None,
        training_opts: "backend.Options | None" = None,
        inference_opts: "backend.Options | None" = None,
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        super().__init__("cpu", accelerator, checkpoint_io, precision_plugin)
        self.ipu_config = ipu_config
        self.parallel_devices: list[torch.device] | None = None
        self._given_training_opts = training_opts
        given = {True: training_opts, False: inference_opts}
        # By whether they are for training.
        self._options = {training: options for training, options in given.items() if options is not None}
        self._pool = ProgramPool()
        # By the name of a step, or for `ipu_model` by whether it trains.
        self._programs: dict[str | bool, backend.PoplarExecutor] = {}
        self._accumulation = 1
        self._accumulating_trainer: pl.Trainer | None = None

    # Options

    @property
    def training_opts(self) -> "backend.Options":
        return self._options_for(training=True)

    @property
    def inference_opts(self) -> "backend.Options":
        return self._options_for(training=False)

    def _options_for(self, *, training: bool) -> "backend.Options":
        if training not in self._options:
            if self.ipu_config is not None:
                options = self.ipu_config.to_options(for_inference=not training)
            else:
                options = backend.Options().autoRoundNumIPUs(True)
                options.replicationFactor(len(self.parallel_devices or [self.root_device]))
            if training and self._accumulation > 1:
                options.Training.gradientAccumulation(self._accumulation)
            self._options[training] = options
        return self._options[training]

    @override
    @property
    def precision_plugin(self) -> Precision:
        return self._precision_plugin if self._precision_plugin is not None else IPUPrecision()

    @precision_plugin.setter
    def precision_plugin(self, precision_plugin: Precision | None) -> None:
        self._precision_plugin = None if precision_plugin is None else IPUPrecision.like(precision_plugin)

    # Life of a run

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Check the module and the trainer, and take over gradient accumulation from Lightning."""
        assert self.lightning_module is not None
        _check_module(self.lightning_module)
        if trainer.gradient_clip_val:
            raise InputError(
                f"`gradient_clip_val={trainer.gradient_clip_val}` clips on the host, which never sees the gradients "
                "of a program; give the optimizer `max_grad_norm` (of `poptorch.optim`) instead."
            )
        if trainer.accumulate_grad_batches != 1:
            self._take_accumulation(trainer)
        super().setup(trainer)
        if self.optimizers and isinstance(self.optimizers[0], torch.optim.LBFGS):
            raise InputError(
                "LBFGS calls the model several times per step, which a program cannot do; use another optimizer."
            )

    def _take_accumulation(self, trainer: pl.Trainer) -> None:
        number, options = trainer.accumulate_grad_batches, self._given_training_opts
        configured = self.ipu_config.gradient_accumulation_steps if self.ipu_config is not None else 1
        if options is not None:
            configured = options.Training.gradient_accumulation
        if configured not in (1, number) or (options is not None and configured != number):
            raise InputError(
                f"`accumulate_grad_batches={number}` contradicts the options of the program, which accumulate "
                f"{configured}; set one of them."
            )
        self._accumulation, self._accumulating_trainer = number, trainer
        # The program accumulates; Lightning would divide the loss, and step only on every n-th batch.
        trainer.accumulate_grad_batches = 1

    @override
    def teardown(self) -> None:
        """Destroy the programs, and give gradient accumulation back to Lightning."""
        self._pool.destroy()
        self._programs.clear()
        if self._accumulating_trainer is not None:
            self._accumulating_trainer.accumulate_grad_batches = self._accumulation
            self._accumulation, self._accumulating_trainer = 1, None
        super().teardown()

    @override
    def process_dataloader(self, dataloader: object) -> object:
        """Return a loader of combined batches for a plain ``DataLoader``, and anything else unchanged."""
        if not isinstance(dataloader, DataLoader) or isinstance(dataloader, backend.DataLoader):
            return dataloader
        training = self._is_training()
        return poptorch_loader(dataloader, self._options_for(training=training), training=training)

    @override
    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: pl.LightningModule | nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        result = super().optimizer_step(optimizer, closure, model, **kwargs)
        for stepped in self.optimizers:
            # torch's schedules warn unless the optimizer has stepped before, and its `step` is never called here.
            stepped._opt_called = True  # type: ignore[attr-defined]
        return result

    @override
    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the optimizer's state, including that on the devices."""
        return super().optimizer_state(optimizer)

    # Steps

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._step("training_step", super().training_step, *args, **kwargs)

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._step("validation_step", super().validation_step, *args, **kwargs)

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._step("test_step", super().test_step, *args, **kwargs)

    @override
    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._step("predict_step", super().predict_step, *args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``ipu_model`` of the module on a combined batch; in a training step, train it.

        Raises:
            InputError: If the module has no ``ipu_model``.
        """
        model = getattr(self.lightning_module, "ipu_model", None)
        if model is None:
            raise InputError(
                "`strategy.execute` runs the module's `ipu_model`, which does not exist; set `self.ipu_model` to the "
                "part of the module that runs on IPUs."
            )
        training = self._is_training()
        return self._run(training, model, *args, training=training, **kwargs)

    def _step(self, name: str, run_on_host: Callable[..., Any], batch: Nested, *indices: int, **named: int) -> Any:
        module = self.lightning_module
        assert module is not None
        if getattr(module, "ipu_model", None) is not None or getattr(module, "runs_steps_on_host", False):
            return run_on_host(batch, *indices, **named)
        training = name == "training_step"
        options = self._options_for(training=training)
        number = options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
        arguments = step_arguments(self.precision_plugin.convert_input(batch), (*indices, *named.values()), number)
        outputs = self._run(name, TracedStep(module, name), *arguments, training=training)
        return mean_loss(outputs) if training else outputs

    def _run(self, key: str | bool, model: nn.Module, /, *args: Any, training: bool, **kwargs: Any) -> Any:
        if key not in self._programs:
            options = self._options_for(training=training)
            self._programs[key] = self._pool.add(
                backend.trainingModel(model, options, self.optimizers[0])
                if training
                else backend.inferenceModel(model, options)
            )
        program = self._pool.attach(self._programs[key])
        if training:
            # Without this a program keeps the hyperparameters that it was compiled with.
            program.setOptimizer(self.optimizers[0])
        return program(*args, **kwargs)

    def _is_training(self) -> bool:
        assert self.lightning_module is not None
        return self.lightning_module.trainer.state.stage is RunningStage.TRAINING


_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def _check_module(module: pl.LightningModule) -> None:
    """Refuse a module whose steps cannot be programs."""
    if isinstance(module, TrainerModule) and not getattr(module, "runs_steps_on_host", False):
        raise InputError(
            f"`strategy='ipu'` does not work with {type(module.hf_trainer).__name__}; use `IPUTrainer`, "
            "`IPUSeq2SeqTrainer` or `IPUGradientDescentTrainer`, or mix `portico.ipu.trainer.IPUMixin` into your "
            "trainer."
        )
    if not module.automatic_optimization:
        raise InputError(
            "Manual optimization is not supported on IPUs, where the program updates the weights; set "
            "`automatic_optimization=True`."
        )
    for name in _TRANSFER_HOOKS:
        if is_overridden(name, module):
            raise InputError(
                f"Overriding `{name}` is not supported on IPUs: a program takes its batch from the host; change the "
                "batch in the dataset or in `collate_fn`."
            )
