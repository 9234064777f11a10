"""Modules that a program cannot run as they are."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.utils.data import DataLoader
from typing_extensions import override

from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.config import IPUConfig
from portico.ipu.data import ipu_loader
from portico.ipu.precision import IPUPrecision
from portico.ipu.program import ProgramPool, TracedStep, mean_loss, step_arguments

_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def check_module(module: pl.LightningModule) -> None:
    """Refuse a module whose steps are no programs.

    Raises:
        InputError: Says why, and what to do instead.
    """
    if hasattr(module, "facade") and not getattr(module, "runs_steps_on_host", False):
        raise InputError(
            f"`strategy='ipu'` came to a {type(module.facade).__name__}, which does not know programs; use "
            "`IPUTrainer`, `IPUSeq2SeqTrainer` or `IPUGradientDescentTrainer`, or mix "
            "`portico.ipu.trainer.IPUMixin` into your trainer."
        )
    if not module.automatic_optimization:
        raise InputError(
            "The module optimizes manually, but a program makes the weight updates itself; set "
            "`automatic_optimization=True`."
        )
    for name in _TRANSFER_HOOKS:
        if is_overridden(name, module):
            raise InputError(
                f"Overriding `{name}` is not supported with IPUs: a program takes its batch from the host; change the "
                "batch in the data set or in `collate_fn`."
            )


def check_optimizers(optimizers: list[torch.optim.Optimizer]) -> None:
    """Refuse optimizers that need more than one forward pass.

    Raises:
        InputError: If there is one.
    """
    if optimizers and isinstance(optimizers[0], torch.optim.LBFGS):
        raise InputError("LBFGS calls the model several times a step, which a program cannot; use another optimizer.")


class StrategyOptions:
    """Makes the options of programs, once for each stage.

    Args:
        ipu_config: Options are made of it, where none are given.
        training_opts: For training.
        inference_opts: For everything else.

    Attributes:
        num_replicas: Replicas, where nothing else says how many.
        accumulation: What Lightning was told to accumulate.
    """

    def __init__(self, ipu_config: IPUConfig | None, training_opts: Any, inference_opts: Any) -> None:
        self._config = ipu_config
        self._given = {True: training_opts, False: inference_opts}
        self._made: dict[bool, Any] = {}
        self.num_replicas = 1
        self.accumulation = 1

    def of(self, *, training: bool) -> Any:
        """Return the options of training programs, or of all others."""
        if training not in self._made:
            given = self._given[training]
            self._made[training] = self._new(training) if given is None else given
        return self._made[training]

    def take_accumulation(self, number: int) -> None:
        """Let the program accumulate what Lightning was told to.

        Raises:
            InputError: If the options say something else.
        """
        options = self._given[True]
        given = self._config.gradient_accumulation_steps if self._config is not None else 1
        if options is not None:
            given = options.Training.gradient_accumulation
        if given not in (1, number) or (options is not None and given != number):
            raise InputError(
                f"`accumulate_grad_batches={number}` and the options of the program, which accumulate {given}, "
                "contradict each other; set one of them."
            )
        self.accumulation = number

    def _new(self, training: bool) -> Any:
        if self._config is not None:
            options = self._config.to_options(for_inference=not training)
        else:
            options = backend.Options().autoRoundNumIPUs(True)
            options.replicationFactor(self.num_replicas)
        if training and self.accumulation > 1:
            options.Training.gradientAccumulation(self.accumulation)
        return options


class ProgramSteps(SingleDeviceStrategy):
    """Runs the step of a module, or the ``ipu_model`` that its step asks for, as a program."""

    _programs: ProgramPool
    # By the name of a step, and of `ipu_model` by whether it trains.
    _made: dict[str | bool, Any]

    @abstractmethod
    def _stage_options(self, *, training: bool) -> Any:
        """Return the options of training programs, or of all others."""

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on a combined batch."""
        if self._keeps_steps_on_host():
            return super().training_step(*args, **kwargs)
        return mean_loss(self._run_traced("training_step", *args, **kwargs))

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a combined batch."""
        if self._keeps_steps_on_host():
            return super().validation_step(*args, **kwargs)
        return self._run_traced("validation_step", *args, **kwargs)

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Test a combined batch."""
        if self._keeps_steps_on_host():
            return super().test_step(*args, **kwargs)
        return self._run_traced("test_step", *args, **kwargs)

    @override
    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Predict on a combined batch."""
        if self._keeps_steps_on_host():
            return super().predict_step(*args, **kwargs)
        return self._run_traced("predict_step", *args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``ipu_model`` of the module on a combined batch; in a training step, train it.

        Raises:
            InputError: If the module has no ``ipu_model``.
        """
        module = self.lightning_module
        model = getattr(module, "ipu_model", None)
        if model is None:
            raise InputError(
                "`strategy.execute` runs the module's `ipu_model`, and there is none; set `self.ipu_model` to the "
                "part of the module that runs on IPUs."
            )
        training = self._stage() is RunningStage.TRAINING
        return self._run(training, model, *args, training=training, **kwargs)

    def _run(self, key: str | bool, model: nn.Module, /, *args: Any, training: bool, **kwargs: Any) -> Any:
        if key not in self._made:
            self._made[key] = (
                self._programs.make_training(model, self._stage_options(training=True), self.optimizers[0])
                if training
                else self._programs.make_inference(model, self._stage_options(training=False))
            )
        program = self._programs.ready(self._made[key])
        if training:
            program.setOptimizer(self.optimizers[0])
        return program(*args, **kwargs)

    def _keeps_steps_on_host(self) -> bool:
        module = self.lightning_module
        return getattr(module, "ipu_model", None) is not None or getattr(module, "runs_steps_on_host", False)

    def _run_traced(self, step_name: str, batch: Any, *indices: int, **named: int) -> Any:
        assert self.lightning_module is not None
        training = step_name == "training_step"
        options = self._stage_options(training=training)
        number = options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
        arguments = step_arguments(self.precision_plugin.convert_input(batch), (*indices, *named.values()), number)
        step = TracedStep(self.lightning_module, step_name)
        return self._run(step_name, step, *arguments, training=training)

    def _stage(self) -> RunningStage | None:
        module = self.lightning_module
        assert module is not None
        return module.trainer.state.stage


class IPUStrategy(ProgramSteps):
    """Runs steps as programs on IPUs.

    A module with an attribute ``ipu_model`` keeps its steps on the host, where they call
    ``self.trainer.strategy.execute(...)`` to run that model (*host-step mode*); of any other module the whole step is
    the program (*traced-step mode*). A training program makes forward and backward passes and the weight updates of
    ``device_iterations x gradient accumulation x replicas`` micro-batches; Lightning counts it as one step.

    Args:
        ipu_config: How the model is spread over IPUs; options are made of it.
        training_opts: ``poptorch.Options`` for training, instead of a configuration.
        inference_opts: ``poptorch.Options`` for everything else.
        accelerator: Lightning's.
        checkpoint_io: Lightning's.
        precision_plugin: An :class:`~portico.ipu.precision.IPUPrecision`, or what Lightning chose.

    Attributes:
        parallel_devices: One for each replica that ``devices`` asks for.

    Raises:
        InputError: If the module or the trainer asks for what a program cannot do.
    """

    strategy_name = "ipu"

    def __init__(
        self,
        ipu_config: IPUConfig | None = None,
        training_opts: Any = None,
        inference_opts: Any = None,
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        super().__init__("cpu", accelerator, checkpoint_io, precision_plugin)
        self.ipu_config = ipu_config
        self._options = StrategyOptions(ipu_config, training_opts, inference_opts)
        self.parallel_devices: list[torch.device] | None = None
        self._programs = ProgramPool()
        self._made = {}

    @property
    def training_opts(self) -> Any:
        """Options of training programs."""
        return self._stage_options(training=True)

    @property
    def inference_opts(self) -> Any:
        """Options of all other programs."""
        return self._stage_options(training=False)

    @override
    def _stage_options(self, *, training: bool) -> Any:
        self._options.num_replicas = len(self.parallel_devices or [self.root_device])
        return self._options.of(training=training)

    @override
    @property
    def precision_plugin(self) -> Precision:
        """The number formats of the programs."""
        return self._precision_plugin if self._precision_plugin is not None else IPUPrecision()

    @precision_plugin.setter
    def precision_plugin(self, precision_plugin: Precision | None) -> None:
        self._precision_plugin = None if precision_plugin is None else IPUPrecision.like(precision_plugin)

    # A run

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Check what the run asks for, and take gradient accumulation over from Lightning."""
        assert self.lightning_module is not None
        check_module(self.lightning_module)
        if trainer.gradient_clip_val:
            raise InputError(
                f"`gradient_clip_val={trainer.gradient_clip_val}` clips on the host, which never sees the gradients "
                "of a program; give the optimizer `max_grad_norm` (of `poptorch.optim`) instead."
            )
        if trainer.accumulate_grad_batches != 1:
            self._options.take_accumulation(trainer.accumulate_grad_batches)
            # The program accumulates; Lightning would divide the loss, and step on every n-th batch only.
            trainer.accumulate_grad_batches = 1
        super().setup(trainer)
        check_optimizers(self.optimizers)

    @override
    def teardown(self) -> None:
        """Take the programs off their IPUs, and give accumulation back to Lightning."""
        self._programs.destroy()
        self._made.clear()
        module = self.lightning_module
        if self._options.accumulation > 1 and module is not None and module._trainer is not None:
            module.trainer.accumulate_grad_batches = self._options.accumulation
            self._options.accumulation = 1
        super().teardown()

    @override
    def process_dataloader(self, dataloader: object) -> object:
        """Return the loader of combined batches for a plain ``DataLoader``; anything else comes back as it is."""
        if not isinstance(dataloader, DataLoader) or isinstance(dataloader, backend.DataLoader):
            return dataloader
        training = self._stage() is RunningStage.TRAINING
        return ipu_loader(dataloader, self._stage_options(training=training), training=training)

    @override
    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Run the step, which updates the weights on the devices."""
        result = super().optimizer_step(optimizer, closure, model, **kwargs)
        for stepped in self.optimizers:
            # A schedule warns when it steps before its optimizer, whose own `step` is never called here.
            stepped._opt_called = True  # type: ignore[attr-defined]
        return result

    @override
    def optimizer_state(self, optimizer: Any) -> Any:
        """Return the optimizer's state, the devices' with it."""
        return super().optimizer_state(optimizer)
