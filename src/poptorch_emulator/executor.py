"""``PoplarExecutor``: a model compiled for IPUs, called like the model itself."""

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from poptorch_emulator.batches import Arguments, BatchLayout, ModelInputs, forbid_backward
from poptorch_emulator.enums import ConnectionType, MeanReductionStrategy, OutputMode
from poptorch_emulator.errors import Error
from poptorch_emulator.faults import current_faults
from poptorch_emulator.machine import VERSION, acquire_ipus, held_ipus, settings
from poptorch_emulator.memory import add_replica_grouping
from poptorch_emulator.optim import SGD
from poptorch_emulator.options import Options
from poptorch_emulator.program import CompiledProgram, DeviceRandomness
from poptorch_emulator.weight_updates import rule_of

logger = logging.getLogger(__name__)

# Minimum, maximum and mean, in seconds.
Latency = tuple[float, float, float]

# Clock of a Mk2, which turns seconds into cycles.
_CYCLES_PER_SECOND = 1.33e9
# File of a saved program where only the folder is given.
_DEFAULT_FILE = "model.poptorch"

# The executor that trains each model. Others read here whether weights were trained since they copied them.
_trainers: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[PoplarExecutor]]" = weakref.WeakKeyDictionary()


class PoplarExecutor:
    """A model that runs on (emulated) IPUs.

    The first call compiles it. The device has its own copy of the weights, which is made when the program is attached
    and by ``copyWeightsToDevice``, and copied to the host after every training call. Attributes that an executor does
    not have are the model's. Methods that need a compiled model raise ``Error`` before.

    Args:
        model: The model.
        options: How it is run; frozen here, and kept as a copy.
        training: Whether calls train.
        optimizer: For training; by default, SGD with a learning rate of 0.01.

    Raises:
        Error: If the model is not a module, the options are of another class, the optimizer is not supported, or a
            program for inference is set to accumulate gradients.
        RuntimeError: If another executor already trains the model.
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
        self._optimizer = optimizer
        self._options = _use_running_means(optimizer, _prepare_options(options, training=training))
        seed = self._options.random_seed
        self._randomness = DeviceRandomness(settings.seed if seed is None else seed)
        self._layout = BatchLayout.from_options(self._options)
        self._inputs = ModelInputs(model, self._layout)
        self._program: CompiledProgram | None = None
        # What it was compiled for, which is saved with it.
        self._example: Arguments | None = None
        self._times: tuple[float, float] | None = None
        self._num_training_calls = 0
        # Training calls of other executors whose weights this one has read.
        self._seen_calls: weakref.WeakKeyDictionary[PoplarExecutor, int] = weakref.WeakKeyDictionary()
        add_replica_grouping(model)
        if training:
            self._claim_model()

    # ---- The model ----

    @property
    def model(self) -> nn.Module:
        return self._model

    @property
    def options(self) -> Options:
        return self._options

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self._optimizer

    def __repr__(self) -> str:
        return repr(self._model)

    def __getattr__(self, name: str) -> Any:
        if name == "_model":
            raise AttributeError(name)
        return getattr(self._model, name)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load weights into the model, and into the device if the model is compiled."""
        result = self._model.load_state_dict(state_dict, strict=strict)
        if self._program is not None:
            self._program.memory.upload()
        return result

    def getTensorNames(self) -> list[str]:
        """Return the names that ``Options.anchorTensor`` takes."""
        return self.compiled.tensor_names

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return a tensor of the last weight update, which ``Options.anchorTensor`` names.

        With several groups of replicas, their values are stacked.

        Raises:
            Error: If there is none of this name, before the first call or without a gradient.
        """
        anchored = self.compiled.anchored
        if short_name not in anchored:
            raise Error(
                f"There is no anchored tensor {short_name!r}; there are: {', '.join(anchored) or 'none yet'}. Name it "
                "with `Options.anchorTensor`, and call the model first."
            )
        return anchored[short_name]

    # ---- Compiling and calling ----

    def isCompiled(self) -> bool:
        return self._program is not None

    @property
    def compiled(self) -> CompiledProgram:
        """The compiled program.

        Raises:
            Error: If the model was not compiled.
        """
        return self._require_program()

    def _require_program(self) -> CompiledProgram:
        if self._program is None:
            raise Error("The model is not compiled yet, so no device has it; call it, or `compile()`, first.")
        return self._program

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these, without running them, unless the model is compiled already."""
        if self._program is not None:
            logger.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(self._inputs.bind(args, kwargs))
        if self._options.connection_type is ConnectionType.Always:
            self.attachToDevice()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a combined batch; a training executor updates the weights once for each device iteration.

        Raises:
            AssertionError: If the batch cannot be cut into micro-batches, or the program has no device to run on.
            Error: If the program cannot be compiled, or the arguments differ in form from the compiled ones.
        """
        if self._options.connection_type is ConnectionType.Never:
            raise AssertionError(
                "Trying to run a model on an offline device (ConnectionType.Never): use model.compile(inputs) instead "
                "of model(inputs), or ConnectionType.Always or OnDemand to run it."
            )
        bound = self._inputs.bind(args, kwargs)
        if self._program is None:
            self._compile(bound)
        else:
            self._inputs.check(bound)
        if not self.isAttachedToDevice():
            self.attachToDevice()
        started = time.perf_counter()
        outputs = self._run(self.compiled, bound)
        self._times = (started, time.perf_counter())
        return outputs

    def _compile(self, bound: Arguments) -> None:
        if self._training and self._optimizer is None:
            self._optimizer = SGD(self._model.parameters(), lr=0.01)
        self._program = CompiledProgram(
            self._model,
            bound,
            self._options,
            layout=self._layout,
            randomness=self._randomness,
            optimizer=self._optimizer if self._training else None,
        )
        self._inputs.compile(bound)
        self._example = bound
        self._mark_weights_as_read()

    def _run(self, program: CompiledProgram, bound: Arguments) -> Any:
        optimizer = program.optimizer
        faults = current_faults()
        if faults is not None:
            is_current = optimizer is None or optimizer.is_current
            faults.check_call(self._inputs.name_arguments(bound), optimizer_is_current=is_current)
        if optimizer is None:
            trainers = self._trainers_of_weights()
            if any(trainer._num_training_calls > self._seen_calls.get(trainer, 0) for trainer in trainers):
                program.memory.upload()
                self._mark_weights_as_read()
            return program.infer(bound)
        optimizer.load_pending_state()
        outputs = program.train(bound)
        program.memory.download()
        self._num_training_calls += 1
        return forbid_backward(outputs)

    # ---- The optimizer ----

    @property
    def loss_scaling(self) -> float:
        optimizer = self._program.optimizer if self._program is not None else None
        return 1.0 if optimizer is None else optimizer.loss_scaling

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Pass the present hyperparameters to the device; changes have no effect before.

        An optimizer of the same kind and with the same constants may replace the compiled one, also one of torch.

        Raises:
            Error: If the executor does not train, or a constant of the program was changed.
            ValueError: If the optimizer accumulates in half precision, and the program was compiled without.
        """
        if not self._training:
            raise Error("setOptimizer is for training models; an inference model has no optimizer.")
        options = _use_running_means(optimizer, self._options)
        if self._program is None:
            self._options = options
        elif options != self._options:
            raise ValueError(
                "Invalid optimizer: accumulators in half precision need MeanReductionStrategy.Running, and the "
                "program was compiled without; make a new training model for this optimizer."
            )
        if self._program is not None and self._program.optimizer is not None:
            self._program.optimizer.set_optimizer(optimizer)
        self._optimizer = optimizer

    # ---- Weights ----

    def copyWeightsToHost(self) -> None:
        self.compiled.memory.download()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Return ``False``: weights are copied to the host after every training call."""
        return False

    def copyWeightsToDevice(self) -> None:
        self.compiled.memory.upload()

    def copyNamedBuffersToDevice(self) -> None:
        """Overwrite the buffers that ``Options.updatableNamedBuffers`` names."""
        self.compiled.memory.upload_buffers(self._options.updatable_named_buffers)

    def _trainers_of_weights(self) -> Iterator["PoplarExecutor"]:
        parameter_ids = self.compiled.memory.parameter_ids
        for reference in list(_trainers.values()):
            trainer = reference()
            if trainer is None or trainer._program is None:
                continue
            if not parameter_ids.isdisjoint(trainer._program.memory.parameter_ids):
                yield trainer

    def _mark_weights_as_read(self) -> None:
        for trainer in self._trainers_of_weights():
            self._seen_calls[trainer] = trainer._num_training_calls

    # ---- IPUs ----

    def isAttachedToDevice(self) -> bool:
        return self in held_ipus

    def attachToDevice(self) -> None:
        """Take IPUs, and upload the weights.

        Raises:
            Error: If the model is not compiled, or too few IPUs are free.
        """
        program = self.compiled
        if self._options.connection_type is ConnectionType.Never:
            raise AssertionError("Trying to attach to an offline device (ConnectionType.Never).")
        if self.isAttachedToDevice():
            raise Error("Device is already attached")
        acquire_ipus(self, program.num_ipus)
        program.memory.upload()
        self._mark_weights_as_read()

    def detachFromDevice(self) -> None:
        """Release the IPUs; weights and optimizer state stay on the host.

        Raises:
            Error: If the program is not attached.
        """
        self._require_program()
        if not self.isAttachedToDevice():
            raise Error("Device is not attached")
        del held_ipus[self]

    def destroy(self) -> None:
        """Release the device, and let the model be wrapped again."""
        held_ipus.pop(self, None)
        if self._program is not None and self._program.optimizer is not None:
            self._program.optimizer.disconnect()
        holder = _trainers.get(self._model)
        if holder is not None and holder() is self:
            del _trainers[self._model]
            del self._model.__dict__["destroy"]
        self._program = None

    def _claim_model(self) -> None:
        holder = _trainers.get(self._model)
        if holder is not None and holder() is not None:
            raise RuntimeError(
                "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to "
                "unwrap before wrapping again."
            )
        _trainers[self._model] = weakref.ref(self)
        self._model.__dict__["destroy"] = _Destroy(weakref.ref(self))

    # ---- Random numbers ----

    @property
    def rng_state(self) -> list[int]:
        """Random state of the device; set it to continue its streams from there."""
        self._require_program()
        return list(self._randomness.state)

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._require_program()
        seed, num_calls = state
        self._randomness.state = [int(seed), int(num_calls)]

    # ---- Files ----

    def compileAndExport(self, filename: str | Path, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for arguments like these, and write the program as :meth:`save` does."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model=export_model)

    def save(self, filename: str | Path, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the program to a file, which ``poptorch.load`` reads.

        Args:
            filename: The file, whose folder is created; or a folder, for ``model.poptorch`` in it.
            export_model: Include the model, without which ``poptorch.load`` cannot load the file.
            save_rng_state: Include the random state of the device, from which a loaded program continues.
        """
        self._require_program()
        file = Path(filename)
        file = file / _DEFAULT_FILE if file.is_dir() else file
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "version": VERSION,
            "model": self._model if export_model else None,
            "example": self._example,
            "options": self._options,
            "training": self._training,
            "optimizer": self._optimizer,
            "rng_state": self.rng_state if save_rng_state else None,
        }
        torch.save(content, file)

    def loadExecutable(self, filename: str | Path) -> None:
        """Compile for the arguments that the program in a file, as :meth:`save` writes it, was compiled for.

        Raises:
            Error: If another version of the emulator wrote the file.
        """
        self._load(_content_of(filename))

    def _load(self, content: Mapping[str, Any]) -> None:
        args, kwargs = content["example"]
        self.compile(*args, **kwargs)
        if content["rng_state"] is not None:
            self.rng_state = content["rng_state"]

    # Times, by the host's clock: inputs are there when a call begins, outputs when it ends, transfers take no time.

    def cycleCount(self) -> int:
        """Return the cycles of an IPU in the time of the last call.

        Raises:
            Error: If cycles are not counted, or there was no call.
        """
        if not self._options.log_cycle_count:
            raise Error("Cycle count logging is disabled. Please set option logCycleCount to True to enable.")
        if self._times is None:
            raise Error("Please run the model at least once before obtaining cycle count.")
        return int(self.getLatency()[0] * _CYCLES_PER_SECOND)

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return when inputs were requested and available, and outputs sent and available, in seconds."""
        started, ended = ([], []) if self._times is None else ([self._times[0]], [self._times[1]])
        return {"input": [started], "input_complete": [started], "output": [ended], "output_complete": [ended]}

    def getLatency(self) -> Latency:
        """Return the time from inputs to outputs, which is all computing; zeros before the first call."""
        started, ended = self._times or (0.0, 0.0)
        return (ended - started,) * 3

    getComputeLatency = getLatency

    def getHostIpuLatency(self) -> Latency:
        """Return the time of transfers: none."""
        return (0.0, 0.0, 0.0)

    getIpuHostLatency = getHostIpuLatency


class _Destroy:
    """``model.destroy()``, which does nothing in copies of the model: their executor is unknown."""

    def __init__(self, trainer: "Callable[[], PoplarExecutor | None]" = lambda: None) -> None:
        self._trainer = trainer

    def __call__(self) -> None:
        trainer = self._trainer()
        if trainer is not None:
            trainer.destroy()

    def __reduce__(self) -> Any:
        return _Destroy, ()


def _prepare_options(options: Options | None, *, training: bool) -> Options:
    """Freeze the user's options, and return a frozen copy with an output mode."""
    given = Options() if options is None else options
    if not isinstance(given, Options):
        raise Error(f"Invalid type: 'options' is of type {type(given)} (Expected poptorch.Options)")
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


def _use_running_means(optimizer: torch.optim.Optimizer | None, options: Options) -> Options:
    """Check the optimizer, and return the options with running means if it accumulates in half precision.

    Sums would overflow there.
    """
    if optimizer is not None:
        rule_of(optimizer)
    if getattr(optimizer, "accum_type", None) is not torch.float16 or getattr(optimizer, "use_combined_accum", False):
        return options
    own = options.clone()
    own.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)
    own.freeze()
    return own


def trainingModel(
    model: nn.Module | PoplarExecutor, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """Return an executor that trains ``model`` with ``optimizer`` (by default, SGD with a learning rate of 0.01).

    Raises:
        RuntimeError: If another executor already trains the model.
    """
    return PoplarExecutor(_inner(model), options, True, optimizer)


def inferenceModel(model: nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    return PoplarExecutor(_inner(model), options, False)


def load(filename: str | Path, edit_opts_fn: Callable[[Options], Any] | None = None) -> PoplarExecutor:
    """Return a saved program, compiled as it was.

    Args:
        filename: File that ``PoplarExecutor.save`` or ``compileAndExport`` wrote. Its content is unpickled: load files
            only from a source you trust.
        edit_opts_fn: Changes the saved options; if it changes the batches of a call, the first call compiles.

    Raises:
        Error: If another version of the emulator wrote the file, or it contains no model.
    """
    content = _content_of(filename)
    if content["model"] is None:
        raise Error(
            f"{filename} contains no model; save it with `export_model=True`, or make the program and call its "
            "`loadExecutable`."
        )
    options = content["options"].clone()
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    program = PoplarExecutor(content["model"], options, content["training"], content["optimizer"])
    if BatchLayout.from_options(options) == BatchLayout.from_options(content["options"]):
        program._load(content)
    elif content["rng_state"] is not None:
        program._randomness.state = list(content["rng_state"])
    return program


def _content_of(filename: str | Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(filename, weights_only=False)
    if content["version"] != VERSION:
        raise Error(
            f"{filename} was written by version {content['version']}, and this is {VERSION}; a program can be loaded "
            "by the version that saved it only."
        )
    return content


def _inner(model: nn.Module | PoplarExecutor) -> nn.Module:
    return model.model if isinstance(model, PoplarExecutor) else model
