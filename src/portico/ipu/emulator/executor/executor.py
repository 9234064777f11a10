"""``PoplarExecutor``: a model compiled for IPUs, called like the model itself."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from portico.ipu.emulator.compile_hooks import compiling
from portico.ipu.emulator.device.memory import DeviceMemory
from portico.ipu.emulator.device.structure import CompiledStructure
from portico.ipu.emulator.enums import ConnectionType
from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.executor.compilation import compile_model
from portico.ipu.emulator.executor.exported import ExportedProgram
from portico.ipu.emulator.executor.inputs import InputFormat, ModelInputs
from portico.ipu.emulator.executor.layout import BatchLayout
from portico.ipu.emulator.executor.optimizer_link import OptimizerLink
from portico.ipu.emulator.executor.outputs import without_backward
from portico.ipu.emulator.executor.own_options import own_options
from portico.ipu.emulator.executor.program import Arguments, Program
from portico.ipu.emulator.executor.shared_weights import claim, give_up
from portico.ipu.emulator.faults import current_faults
from portico.ipu.emulator.options.options import Options
from portico.ipu.emulator.replica_groups import offer_grouping


class PoplarExecutor(ExportedProgram):
    """A model that runs on (emulated) IPUs.

    The first call compiles it. The device has its own copy of the weights: it gets the host's when the program is
    attached or told to (``copyWeightsToDevice``), and the host gets the device's after every training call. Attributes
    that an executor does not have are those of the model.

    Args:
        model: The model.
        options: How it is run; frozen here, and kept as a copy.
        training: Whether calls train.
        optimizer: For training.
    """

    def __init__(
        self, model: nn.Module, options: Options | None, training: bool, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        if not isinstance(model, nn.Module | PoplarExecutor):
            raise Error(
                f"A program is made of a torch.nn.Module, and a {type(model).__name__} was given; call "
                "functions in the `forward` of a module."
            )
        self._model = model
        self._training = training
        super().__init__(own_options(options, training=training))
        self._link = OptimizerLink(optimizer)
        self._layout = BatchLayout(
            self._options.device_iterations,
            self._options.Training.gradient_accumulation if training else 1,
            self._options.replication_factor,
            self._options.input_group_size,
        )
        self._inputs = ModelInputs(model, self._layout)
        self._format: InputFormat | None = None
        self._program: Program | None = None
        self.num_writes = 0
        offer_grouping(model)
        if training:
            claim(model, self)

    # The model

    @property
    def model(self) -> nn.Module:
        """The user's model."""
        return self._model

    @property
    def options(self) -> Options:
        """The options of this executor."""
        return self._options

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The user's optimizer."""
        return self._link.users

    def __getattr__(self, name: str) -> Any:
        if name == "_model":
            raise AttributeError(name)
        return getattr(self._model, name)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load weights into the model, and into the device if it holds any."""
        result = self._model.load_state_dict(state_dict, strict=strict)
        if self._memory is not None:
            self._memory.upload()
        return result

    # Compiling and calling

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these, without running them."""
        self._compile(self._inputs.bind(args, kwargs))
        if self._options.connection_type is ConnectionType.Always:
            self.attachToDevice()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a combined batch; an executor that trains updates the weights once for each device iteration.

        Raises:
            AssertionError: If the batch cannot be cut into micro-batches, or the program has no device to run on.
            Error: If the program cannot be compiled, or the arguments are of another form than at compilation.
        """
        bound = self._inputs.bind(args, kwargs)
        if self._compiled is None:
            self._compile(bound)
        else:
            assert self._format is not None
            self._format.check(self._inputs.names(*bound))
        if self._options.connection_type is ConnectionType.Never:
            raise AssertionError(
                "Trying to run a model on an offline device (ConnectionType.Never); use ConnectionType.Always or "
                "OnDemand to run what was compiled."
            )
        if not self._hold.is_held:
            self.attachToDevice()
        with self.measured():
            return self._run(bound)

    def _compile(self, bound: Arguments) -> None:
        options = self._options
        memory = DeviceMemory(
            self._model, num_replicas=options.replication_factor, broadcasts_buffers=options.broadcast_buffers
        )
        with compiling():
            self._compiled = compile_model(
                self._model,
                bound,
                options,
                memory=memory,
                randomness=self._randomness,
                layout=self._layout,
                training=self._training,
            )
        self._memory = memory
        self._format = InputFormat(self._inputs.names(*bound))
        self._program = Program(
            self._model,
            options,
            memory=memory,
            randomness=self._randomness,
            structure=CompiledStructure(self._model),
            layout=self._layout,
        )
        self._reader.note(memory)
        if self._training:
            self._link.compile(self._model, scales_automatically=options.Training.auto_loss_scaling)

    def _run(self, bound: Arguments) -> Any:
        assert self._program is not None
        assert self._compiled is not None
        memory, link = self._compiled_memory(), self._link
        faults = current_faults()
        if faults is not None:
            faults.before_call(self._inputs.names(*bound), told_optimizer=link.is_current)
        if link.device is None:
            if self._reader.has_news(memory):
                memory.upload()
                self._reader.note(memory)
            return self._program.infer(bound)
        link.load_pending_state()
        outputs = self._program.train(bound, link.device, link.scaling, self._compiled.loss_of)
        memory.download()
        self.num_writes += 1
        return without_backward(outputs)

    # The optimizer

    @property
    def loss_scaling(self) -> float:
        """Factor of the loss in the next update."""
        return self._link.loss_scaling

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Tell the device the present hyperparameters; a change has no effect before.

        Raises:
            Error: If the executor does not train, or the change touches what was compiled as a constant.
        """
        if not self._training:
            raise Error("setOptimizer is for training models; an inference model has no optimizer.")
        self._link.take(optimizer)

    def destroy(self) -> None:
        """Give up the device, and let the model be wrapped again."""
        if self._hold.is_held:
            self.detachFromDevice()
        self._link.disconnect()
        if self._training:
            give_up(self._model, self)
        self._compiled = self._memory = self._program = self._link.device = None
