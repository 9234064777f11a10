"""``IPUStrategy``: a Lightning run whose steps are programs on IPUs."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer.states import RunningStage
from torch.utils.data import DataLoader
from typing_extensions import override

from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.config import IPUConfig
from portico.ipu.data import ipu_loader
from portico.ipu.executors import ProgramPool
from portico.ipu.module_checks import check_module, check_optimizers
from portico.ipu.precision import IPUPrecision
from portico.ipu.strategy_options import StrategyOptions
from portico.ipu.strategy_steps import ProgramSteps


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
