"""``IPUStrategy``: a Lightning run whose steps are programs on IPUs."""

import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.strategies.strategy import TBroadcast
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils.data import DataLoader
from typing_extensions import override

from portico.compat.annotations import Nested
from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.config import IPUConfig
from portico.ipu.data import poptorch_loader
from portico.ipu.precision import IPUPrecision
from portico.ipu.program import ProgramPool, TracedStep, mean_loss, step_arguments
from portico.loop.module import TrainerModule


class IPUStrategy(ParallelStrategy):
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
        device_iterations: Weight updates, or inference batches, of one call, where neither a configuration nor options
            are given.
        autoreport: Let Poplar write a report of each program, for Graphcore's PopVision.
        autoreport_dir: Folder of the reports.
        parallel_devices: One for each replica; by default as many as ``devices``.
        cluster_environment: Set by Lightning.

    Raises:
        InputError: If the module or the trainer requires what a program cannot do, or arguments contradict each other.
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
        device_iterations: int = 1,
        autoreport: bool = False,
        autoreport_dir: str | None = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
    ) -> None:
        super().__init__(accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin)
        if ipu_config is not None and device_iterations != 1:
            raise InputError(
                f"`device_iterations={device_iterations}` is not used with an IPUConfig; set its `device_iterations` "
                "and `inference_device_iterations`."
            )
        self.ipu_config = ipu_config
        self.device_iterations = device_iterations
        given = {True: training_opts, False: inference_opts}
        # By whether they are for training.
        self._given = {training: options for training, options in given.items() if options is not None}
        self._options = dict(self._given)
        self._pool = ProgramPool()
        self._programs: dict[RunningStage, backend.PoplarExecutor] = {}
        self._is_set_up = False
        self._accumulating_trainer: tuple[pl.Trainer, int] | None = None
        self.autoreport = autoreport
        self.autoreport_dir = autoreport_dir
        if autoreport:
            _request_reports(autoreport_dir)

    # ---- Options ----

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
                options = backend.Options().autoRoundNumIPUs(True).deviceIterations(self.device_iterations)
                options.replicationFactor(len(self.parallel_devices or [self.root_device]))
            seed = os.environ.get(_SEED_VARIABLE)
            if seed and getattr(options, "random_seed", None) is None:
                # `poptorch` also seeds the host, which would draw the numbers after `seed_everything` again.
                with torch.random.fork_rng(devices=[]):
                    options.randomSeed(int(seed))
            self._options[training] = options
        return self._options[training]

    @property
    def replication_factor(self) -> int:
        """Replicas of the present stage's program; outside of a run, of the training program."""
        module = self.lightning_module
        stage = None if module is None or module._trainer is None else module.trainer.state.stage
        # Options that the user gave take precedence, first the options for training.
        training = stage is RunningStage.TRAINING if stage is not None else True in self._given or not self._given
        return int(self._options_for(training=training).replication_factor)

    @override
    @property
    def precision_plugin(self) -> Precision:
        return self._precision_plugin if self._precision_plugin is not None else IPUPrecision()

    @precision_plugin.setter
    def precision_plugin(self, precision_plugin: Precision | None) -> None:
        self._precision_plugin = None if precision_plugin is None else IPUPrecision.convert(precision_plugin)

    # ---- Life of a run ----

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
        self._programs.clear()
        if trainer.accumulate_grad_batches != 1:
            self._take_accumulation(trainer)
        super().setup(trainer)
        if self.optimizers and isinstance(self.optimizers[0], torch.optim.LBFGS):
            raise InputError(
                "LBFGS calls the model several times per step, which a program cannot do; use another optimizer."
            )
        self._is_set_up = True

    def _take_accumulation(self, trainer: pl.Trainer) -> None:
        number = trainer.accumulate_grad_batches
        is_given = True in self._given
        configured = self.training_opts.Training.gradient_accumulation
        if configured != number and (configured != 1 or is_given):
            raise InputError(
                f"`accumulate_grad_batches={number}` contradicts the options of the program, which accumulate "
                f"{configured}; set one of them."
            )
        if not is_given:
            self.training_opts.Training.gradientAccumulation(number)
        self._accumulating_trainer = (trainer, number)
        # The program accumulates; Lightning would divide the loss, and step only on every n-th batch.
        trainer.accumulate_grad_batches = 1

    @override
    def teardown(self) -> None:
        """Destroy the programs, and give gradient accumulation back to Lightning."""
        self._pool.destroy()
        # The next run may have another number of batches to accumulate.
        self._options = dict(self._given)
        self._is_set_up = False
        if self._accumulating_trainer is not None:
            trainer, number = self._accumulating_trainer
            trainer.accumulate_grad_batches = number
            self._accumulating_trainer = None
        super().teardown()

    @override
    def process_dataloader(self, dataloader: object) -> object:
        """Return a loader of combined batches for a plain ``DataLoader``, and anything else unchanged."""
        if not isinstance(dataloader, DataLoader) or isinstance(dataloader, backend.DataLoader):
            return dataloader
        training = self._stage is RunningStage.TRAINING
        return poptorch_loader(dataloader, self._options_for(training=training), training=training)

    # One process runs all replicas.
    world_size = 1
    global_rank = 0
    local_rank = 0
    node_rank = 0

    @override
    @property
    def root_device(self) -> torch.device:
        """The host's CPU: programs take and return its tensors."""
        return torch.device("cpu")

    @override
    def model_to_device(self) -> None:
        """Do nothing: attaching a program uploads its weights."""

    @override
    def reduce(self, tensor: Nested, *args: object, **kwargs: object) -> Nested:
        return tensor

    @override
    def all_gather(self, tensor: Tensor, *args: object, **kwargs: object) -> Tensor:
        return tensor

    @override
    def barrier(self, *args: object, **kwargs: object) -> None:
        """Do nothing: a run has one process."""

    @override
    def broadcast(self, obj: TBroadcast, src: int = 0) -> TBroadcast:
        return obj

    @override
    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: pl.LightningModule | nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        result = super().optimizer_step(optimizer, closure, model, **kwargs)
        stepped: Any
        for stepped in self.optimizers:
            # torch's schedules warn unless the optimizer has stepped before, and its `step` is never called here.
            stepped._opt_called = True
        return result

    # ---- Steps ----

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

    def execute(self, *args: object, **kwargs: object) -> Any:
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
        return self._run(*args, **kwargs)

    def _step(self, name: str, run_on_host: Callable[..., Any], batch: Nested, *indices: int, **named: int) -> Any:
        if self._runs_steps_on_host:
            return run_on_host(batch, *indices, **named)
        training = name == "training_step"
        options = self._options_for(training=training)
        number = options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
        arguments = step_arguments(self.precision_plugin.convert_input(batch), (*indices, *named.values()), number)
        outputs = self._run(*arguments)
        return mean_loss(outputs) if training else outputs

    @property
    def _runs_steps_on_host(self) -> bool:
        module = self.lightning_module
        return getattr(module, "ipu_model", None) is not None or getattr(module, "runs_steps_on_host", False)

    # ---- Programs ----

    @property
    def poptorch_models(self) -> "Mapping[RunningStage, backend.PoplarExecutor]":
        """The programs of the present or latest run by stage; the first batch of a stage compiles its program."""
        module = self.lightning_module
        if self._is_set_up and module is not None and not getattr(module, "runs_steps_on_host", False):
            for stage in _stages_of(module.trainer):
                self._program(stage)
        return self._programs

    def _run(self, *args: object, **kwargs: object) -> Any:
        program = self._pool.attach(self._program(self._stage))
        if self._stage is RunningStage.TRAINING:
            # Without this a program keeps the hyperparameters that it was compiled with.
            program.setOptimizer(self.optimizers[0])
        return program(*args, **kwargs)

    def _program(self, stage: RunningStage) -> "backend.PoplarExecutor":
        # The sanity check runs the program of validations.
        stage = RunningStage.VALIDATING if stage is RunningStage.SANITY_CHECKING else stage
        if stage not in self._programs:
            module = self.lightning_module
            assert module is not None
            model = getattr(module, "ipu_model", None) or TracedStep(module, _STEPS[stage])
            options = self._options_for(training=stage is RunningStage.TRAINING)
            self._programs[stage] = self._pool.add(
                backend.trainingModel(model, options, self.optimizers[0])
                if stage is RunningStage.TRAINING
                else backend.inferenceModel(model, options)
            )
            if stage is RunningStage.VALIDATING:
                self._programs[RunningStage.SANITY_CHECKING] = self._programs[stage]
        return self._programs[stage]

    @property
    def _stage(self) -> RunningStage:
        assert self.lightning_module is not None
        stage = self.lightning_module.trainer.state.stage
        assert stage is not None
        return stage


_STEPS = {
    RunningStage.TRAINING: "training_step",
    RunningStage.VALIDATING: "validation_step",
    RunningStage.TESTING: "test_step",
    RunningStage.PREDICTING: "predict_step",
}


def _stages_of(trainer: pl.Trainer) -> tuple[RunningStage, ...]:
    """Return the stages of a run whose steps are programs."""
    if trainer.state.fn is TrainerFn.FITTING:
        validation = (RunningStage.VALIDATING,) if trainer.enable_validation else ()
        return (RunningStage.TRAINING, *validation)
    return tuple(stage for stage in _STEPS if trainer.state.fn is not None and stage == trainer.state.fn.value)


def _request_reports(folder: str | None) -> None:
    options = {**json.loads(os.environ.get("POPLAR_ENGINE_OPTIONS", "{}")), "autoReport.all": True}
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        options["autoReport.directory"] = folder
    os.environ["POPLAR_ENGINE_OPTIONS"] = json.dumps(options)


# Where Lightning's `seed_everything` keeps the seed.
_SEED_VARIABLE = "PL_GLOBAL_SEED"
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
    for name in ("backward", "optimizer_zero_grad"):
        if is_overridden(name, module) and not isinstance(module, TrainerModule):
            warnings.warn(
                f"`{name}` of {type(module).__name__} has no effect on IPUs, where the program computes gradients and "
                "starts each update from zero.",
                UserWarning,
                stacklevel=2,
            )
    for name in _TRANSFER_HOOKS:
        if is_overridden(name, module):
            raise InputError(
                f"Overriding `{name}` is not supported on IPUs: a program takes its batch from the host; change the "
                "batch in the dataset or in `collate_fn`."
            )
