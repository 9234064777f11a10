"""Which programs train which weights, so that others read them anew."""

import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from poptorch_emulator.batches import BatchLayout, InputFormat, ModelInputs, without_backward
from poptorch_emulator.enums import ConnectionType, OutputMode
from poptorch_emulator.errors import Error
from poptorch_emulator.faults import current_faults
from poptorch_emulator.machine import VERSION, Hold, settings
from poptorch_emulator.memory import CompiledStructure, DeviceMemory, offer_grouping
from poptorch_emulator.ops import compiling
from poptorch_emulator.options import Options
from poptorch_emulator.program import Arguments, Compiled, DeviceRandomness, Program, compile_model
from poptorch_emulator.weight_updates import OptimizerLink


class Trains(Protocol):
    """A program that trains.

    Attributes:
        num_writes: How often it has written weights.
    """

    num_writes: int

    def destroy(self) -> None:
        """Give the model up."""

    @property
    def memory(self) -> DeviceMemory | None:
        """What it has on the device, once it is compiled."""


_trainers: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Trains]]" = weakref.WeakKeyDictionary()


def claim(model: nn.Module, trainer: Trains) -> None:
    """Make ``trainer`` the program that trains ``model``.

    Raises:
        RuntimeError: If another does, and was not destroyed.
    """
    holder = _trainers.get(model)
    if holder is not None and holder() is not None:
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to unwrap "
            "before wrapping again."
        )
    _trainers[model] = weakref.ref(trainer)
    model.__dict__["destroy"] = _Destroy(weakref.ref(trainer))


def give_up(model: nn.Module, trainer: Trains) -> None:
    """Let another program train ``model``, if ``trainer`` did."""
    holder = _trainers.get(model)
    if holder is not None and holder() is trainer:
        del _trainers[model]
        del model.__dict__["destroy"]


class _Destroy:
    """``model.destroy()``; it stays behind where the model is copied or pickled.

    Args:
        trainer: The program that is destroyed.
    """

    def __init__(self, trainer: "weakref.ref[Trains] | None" = None) -> None:
        self._trainer = trainer

    def __call__(self) -> None:
        trainer = None if self._trainer is None else self._trainer()
        if trainer is not None:
            trainer.destroy()

    def __reduce__(self) -> Any:
        return _Destroy, ()


class WeightReader:
    """Tells whether weights were trained by another program since they were read."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[Trains, int] = weakref.WeakKeyDictionary()

    def has_news(self, memory: DeviceMemory) -> bool:
        """Tell whether weights of ``memory`` were trained since :meth:`note`."""
        return any(trainer.num_writes > self._seen.get(trainer, 0) for trainer in _trainers_of(memory))

    def note(self, memory: DeviceMemory) -> None:
        """Take the weights of ``memory`` for read."""
        for trainer in _trainers_of(memory):
            self._seen[trainer] = trainer.num_writes


def _trainers_of(memory: DeviceMemory) -> list[Trains]:
    trainers = [reference() for reference in _trainers.values()]
    return [
        trainer
        for trainer in trainers
        if trainer is not None
        and trainer.memory is not None
        and not memory.parameter_ids.isdisjoint(trainer.memory.parameter_ids)
    ]


# Minimum, maximum and mean, in seconds.
Latency = tuple[float, float, float]


class CallTimes:
    """Times of the last call.

    Args:
        counts_cycles: Whether ``Options.logCycleCount`` is on.
    """

    # Of a Mk2, to make cycles of seconds.
    _CYCLES_PER_SECOND = 1.33e9

    def __init__(self, *, counts_cycles: bool) -> None:
        self._counts_cycles = counts_cycles
        self._times: tuple[float, float] | None = None

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure a call."""
        started = time.perf_counter()
        yield
        self._times = (started, time.perf_counter())

    def _last(self) -> tuple[float, float]:
        if self._times is None:
            raise Error("The model has not been run yet, so nothing was measured; call it first.")
        return self._times

    def cycleCount(self) -> int:
        """Return the cycles that an IPU makes in the time that the last call took.

        Raises:
            AssertionError: If cycles are not counted.
        """
        if not self._counts_cycles:
            raise AssertionError(
                "Cycle count logging is disabled; set poptorch.Options.logCycleCount(True) to enable it"
            )
        started, ended = self._last()
        return int((ended - started) * self._CYCLES_PER_SECOND)

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return when inputs were asked for and there, and outputs sent and there, in seconds."""
        started, ended = self._last()
        return {
            "input": [[started]],
            "input_complete": [[started]],
            "output": [[ended]],
            "output_complete": [[ended]],
        }

    def getLatency(self) -> Latency:
        """Return the time from inputs to outputs."""
        started, ended = self._last()
        return (ended - started,) * 3

    def getComputeLatency(self) -> Latency:
        """Return the time that computing took: all of it."""
        return self.getLatency()

    def getHostIpuLatency(self) -> Latency:
        """Return the time that inputs took to the devices: none."""
        self._last()
        return (0.0, 0.0, 0.0)

    def getIpuHostLatency(self) -> Latency:
        """Return the time that outputs took to the host: none."""
        return self.getHostIpuLatency()


def own_options(options: Options | None, *, training: bool) -> Options:
    """Freeze the user's options, and return a frozen copy that names an output mode.

    Args:
        options: The user's; the defaults if there are none.
        training: Whether the program trains.

    Raises:
        Error: If a program for inference is to accumulate gradients.
    """
    given = Options() if options is None else options
    accumulation = given.Training.gradient_accumulation
    if not training and accumulation != 1:
        raise Error(
            "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value (1) "
            f"when running a poptorch.inferenceModel(); it is {accumulation}."
        )
    given.freeze()
    own = given.clone()
    if own.output_mode is OutputMode.Default:
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    own.freeze()
    return own


class DeviceSide(CallTimes):
    """Holds IPUs, and weights and random streams on them, once the program is compiled.

    Args:
        options: Frozen options.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(counts_cycles=options.log_cycle_count)
        self._options = options
        seed = options.random_seed
        self._randomness = DeviceRandomness(settings.seed if seed is None else seed)
        self._compiled: Compiled | None = None
        self._memory: DeviceMemory | None = None
        self._hold = Hold()
        self._reader = WeightReader()

    def isCompiled(self) -> bool:
        """Tell whether the model was compiled."""
        return self._compiled is not None

    @property
    def compiled(self) -> Compiled:
        """What compiling brought to light.

        Raises:
            Error: If the model was not compiled.
        """
        self._compiled_memory()
        assert self._compiled is not None
        return self._compiled

    # Weights

    def copyWeightsToHost(self) -> None:
        """Overwrite the model's weights with the device's.

        Raises:
            Error: If the model was not compiled.
        """
        self._compiled_memory().download()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Tell that nothing is needed: the host has the device's weights after every training call."""
        return False

    def copyWeightsToDevice(self) -> None:
        """Overwrite the device's weights with the model's.

        Raises:
            Error: If the model was not compiled.
        """
        self._compiled_memory().upload()

    def copyNamedBuffersToDevice(self) -> None:
        """Overwrite the buffers that ``Options.updatableNamedBuffers`` names."""
        self._compiled_memory().upload_buffers(self._options.updatable_named_buffers)

    def _compiled_memory(self) -> DeviceMemory:
        if self._memory is None:
            raise Error("The model is not compiled yet, so no device holds its weights; call it, or `compile()`.")
        return self._memory

    @property
    def memory(self) -> DeviceMemory | None:
        """What the program has on the device, once it is compiled."""
        return self._memory

    # IPUs

    def isAttachedToDevice(self) -> bool:
        """Tell whether the program holds its IPUs."""
        return self._hold.is_held

    def attachToDevice(self) -> None:
        """Take IPUs, and upload weights and optimizer state.

        Raises:
            Error: If the model is not compiled, or too few IPUs are free.
        """
        if self._compiled is None:
            raise Error("The model is not compiled yet; call it, or `compile()`, before it is attached to a device.")
        if self._options.connection_type is ConnectionType.Never:
            raise AssertionError("Trying to attach to an offline device (ConnectionType.Never).")
        if self._hold.is_held:
            raise Error("Device is already attached")
        self._hold.acquire(self._compiled.num_ipus)
        self._compiled_memory().upload()
        self._reader.note(self._compiled_memory())

    def detachFromDevice(self) -> None:
        """Give the IPUs back; weights and optimizer state stay on the host.

        Raises:
            Error: If the program holds none.
        """
        if self._compiled is None:
            raise Error("The model is not compiled yet, so it is attached to no device.")
        if not self._hold.is_held:
            raise Error("Device is not attached")
        self._hold.release()

    # Random streams

    @property
    def rng_state(self) -> list[int]:
        """Random state of the device; set it to continue its streams from there."""
        return self._randomness.state

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._randomness.state = state


# Name of a program's file where only the folder is given.
DEFAULT_NAME = "model.poptorch"


class ExportedProgram(DeviceSide):
    """How a program is written into a file, which ``poptorch.load`` reads."""

    _model: nn.Module
    _training: bool

    @abstractmethod
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these."""

    @property
    @abstractmethod
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The user's optimizer."""

    def compileAndExport(self, filename: str | Path, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for arguments like these, and write the program as :meth:`save` does."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model=export_model)

    def save(self, filename: str | Path, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the program into a file.

        Args:
            filename: The file, whose folder is made; or a folder, for ``model.poptorch`` in it.
            export_model: Write the model too, without which nothing can be loaded.
            save_rng_state: Write the random state of the device too, from which a loaded program goes on.

        Raises:
            Error: If the model is not compiled.
        """
        self._compiled_memory()
        file = Path(filename)
        file = file / DEFAULT_NAME if file.is_dir() else file
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "version": VERSION,
            "model": self._model if export_model else None,
            "options": self._options,
            "training": self._training,
            "optimizer": self.optimizer,
            "rng_state": self.rng_state if save_rng_state else None,
        }
        torch.save(content, file)


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


def trainingModel(
    model: Any, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """Return an executor that trains ``model`` with ``optimizer`` (SGD with a rate of 0.01 by default).

    Raises:
        RuntimeError: If another executor trains the model already.
    """
    return PoplarExecutor(_inner(model), options, True, optimizer)


def inferenceModel(model: Any, options: Options | None = None) -> PoplarExecutor:
    """Return an executor that runs ``model`` forward."""
    return PoplarExecutor(_inner(model), options, False)


def _inner(model: Any) -> nn.Module:
    inner: nn.Module = model.model if isinstance(model, PoplarExecutor) else model
    return inner


def load(filename: str | Path, edit_opts_fn: Callable[[Options], Any] | None = None) -> PoplarExecutor:
    """Return the program that an executor has saved; it is compiled by its first call.

    Args:
        filename: File that ``PoplarExecutor.save`` or ``compileAndExport`` wrote. Its content is unpickled: load only
            files of a source you trust.
        edit_opts_fn: Changes the options that were saved.

    Raises:
        Error: If another version of the emulator wrote it, or it holds no model.
    """
    content: dict[str, Any] = torch.load(filename, weights_only=False)
    if content["version"] != VERSION:
        raise Error(
            f"{filename} was written by version {content['version']}, and this is {VERSION}; a program can be loaded "
            "by the version that saved it only."
        )
    if content["model"] is None:
        raise Error(f"{filename} holds no model; save it with `export_model=True`.")
    options = content["options"].clone()
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    program = PoplarExecutor(content["model"], options, content["training"], content["optimizer"])
    if content["rng_state"] is not None:
        program.rng_state = content["rng_state"]
    return program
