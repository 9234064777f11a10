"""``Options``: how a model is compiled and run.

Most options are a row of a table, an :class:`Option`: the name of the setter, the option it stores, the check of its
value and the default. Comments say what the emulator does with it; PopTorch's user guide says what those do on
hardware that are only stored here.
"""

import ast
import copy
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType
from typing import Any, Self, TypeVar

import torch

from poptorch_emulator.enums import (
    ConnectionType,
    HalfFloatCastingBehavior,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)
from poptorch_emulator.errors import ConfigFileError, Error, require_count, require_type
from poptorch_emulator.execution import ExecutionStrategy, PipelinedExecution

logger = logging.getLogger(__name__)

Group = TypeVar("Group", bound="OptionsGroup")
Check = type | tuple[type, ...] | Callable[[Any, str], None]

_LEFT_OUT: Any = Parameter.empty


@dataclass(eq=False)
class Option:
    """An option of a group and its setter, which checks a value, stores it, and returns the group."""

    option: str
    """Name under which the value is stored and read."""
    check: Check
    """Type or types of the value, or a function of the value and the setter's name that raises."""
    default: Any = _LEFT_OUT
    """Value before the setter is called; left out, the option does not exist before."""
    _: KW_ONLY
    parameter: str = ""
    """Name of the setter's parameter; the option by default."""
    omitted: Any = _LEFT_OUT
    """Value that a call without an argument stores; left out, the argument is required."""
    takes_each: bool = False
    """Whether the setter takes one value or an iterable of values, and stores a list."""
    convert: Callable[[Any], Any] | None = None
    """Makes the stored value from the given one."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._setter = name
        parameter = Parameter(self.parameter or self.option, Parameter.POSITIONAL_OR_KEYWORD, default=self.omitted)
        self._signature = Signature([parameter])

    def __get__(self, group: Group, owner: type) -> Callable[..., Group]:
        def set_option(*args: Any, **kwargs: Any) -> Group:
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            (value,) = bound.arguments.values()
            group.set(**{self.option: self._validate(value)})
            return group

        setter: Any = set_option
        setter.__name__ = self._setter
        setter.__signature__ = self._signature
        return set_option

    def _validate(self, value: Any) -> Any:
        if isinstance(self.check, type) and issubclass(self.check, Enum):
            value = _member(self.check, value)
        if self.takes_each:
            value = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        for number in value if self.takes_each else [value]:
            if isinstance(self.check, type | tuple):
                require_type(number, self.check, self._setter)
            else:
                self.check(number, self._setter)
        return value if self.convert is None else self.convert(value)


class OptionsGroup:
    """Named values that setters change until a loader or an executor freezes them.

    Values are read as attributes. Changing one after freezing raises ``AttributeError``.
    """

    _values: dict[str, Any]
    _is_frozen: bool = False

    def __init__(self, **defaults: Any) -> None:
        entries = [entry for kind in type(self).__mro__ for entry in vars(kind).values()]
        declared = [entry for entry in entries if isinstance(entry, Option)]
        values = {entry.option: copy.copy(entry.default) for entry in declared if entry.default is not _LEFT_OUT}
        object.__setattr__(self, "_values", values | defaults)

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` look names up before the values exist.
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"{type(self).__name__} has no option {name!r}; it has {', '.join(sorted(values))}")

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_frozen or name in self._values:
            self.set(**{name: value})
        else:
            object.__setattr__(self, name, value)

    def set(self, **values: Any) -> None:
        """Change options by name.

        Raises:
            AttributeError: If the options are frozen.
        """
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")
        self._values.update(values)

    def exists(self, name: str) -> bool:
        return name in self._values

    def toDict(self) -> dict[str, Any]:
        return dict(self._values)

    def freeze(self) -> None:
        object.__setattr__(self, "_is_frozen", True)
        for group in self._subgroups():
            group.freeze()

    def _subgroups(self) -> list["OptionsGroup"]:
        return [value for value in self.__dict__.values() if isinstance(value, OptionsGroup)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        clone = object.__new__(type(self))
        memo[id(self)] = clone
        for name, value in self.__dict__.items():
            object.__setattr__(clone, name, copy.deepcopy(value, memo))
        object.__setattr__(clone, "_is_frozen", False)
        return clone

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OptionsGroup) or type(self) is not type(other):
            return NotImplemented
        return self._values == other._values and self._subgroups() == other._subgroups()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


# ---- Checks ----


def _member(kind: type[Enum], value: Any) -> Any:
    """Return the member that a string names, bare or as ``repr`` prints it; anything else unchanged."""
    named = re.fullmatch(rf"<?(?:poptorch\.)?(?:{kind.__name__}\.)?(\w+)(?:: .*>)?", str(value))
    return kind.__members__.get(named[1], value) if named and isinstance(value, str) else value


def _check_reduction(reduction: ReductionType) -> ReductionType:
    if reduction is ReductionType.NoReduction:
        raise ValueError(
            "accumulationAndReplicationReductionType cannot be ReductionType.NoReduction, because the gradients of "
            "several micro-batches have to be combined; use ReductionType.Mean or ReductionType.Sum."
        )
    return reduction


def _check_half_casting(behavior: HalfFloatCastingBehavior) -> HalfFloatCastingBehavior:
    if behavior is not HalfFloatCastingBehavior.FloatDowncastToHalf:
        raise ValueError(
            f"halfFloatCasting does not support {behavior.name}; convert tensors with `.float()` where half and "
            "single precision meet."
        )
    return behavior


def _require_partials_type(value: object, name: str) -> None:
    require_type(value, torch.dtype, name)
    if value not in (torch.float32, torch.float16):
        raise ValueError(f"{name} takes torch.float32 or torch.float16; {value} was given.")


def _require_io_tiles(value: object, name: str) -> None:
    require_type(value, int, name)
    if value not in range(32, 193, 2):
        raise AssertionError(f"{name} must be an even number between 32 and 192; {value} was given")


def _require_count_or_none(value: object, name: str) -> None:
    if value is not None:
        require_count(value, name)


# ---- Groups ----


class TrainingOptions(OptionsGroup):
    """Accumulation, reduction and loss scaling; reached as ``options.Training``."""

    # Micro-batches of a replica for one weight update.
    gradientAccumulation = Option("gradient_accumulation", require_count, 1)
    # How the gradients of micro-batches and replicas are combined.
    accumulationAndReplicationReductionType = Option(
        "accumulation_and_replication_reduction_type",
        ReductionType,
        ReductionType.Mean,
        parameter="reduction_type",
        convert=_check_reduction,
    )
    # Whether a mean gradient is updated while accumulating, or divided at the end.
    setMeanAccumulationAndReplicationReductionStrategy = Option(
        "meanAccumulationAndReplicationReductionStrategy",
        MeanReductionStrategy,
        MeanReductionStrategy.Post,
        parameter="mean_reduction_strategy",
    )
    # Adapt the loss scaling to the size of the gradients after every update.
    setAutomaticLossScaling = Option("auto_loss_scaling", bool, False, parameter="enabled")
    # Only stored.
    setConvolutionDithering = Option("convolution_dithering", bool, False, parameter="enabled")


class PrecisionOptions(OptionsGroup):
    """Number formats, which are only stored; reached as ``options.Precision``."""

    runningStatisticsAlwaysFloat = Option("running_statistics_always_float", bool, True, parameter="value")
    halfFloatCasting = Option(
        "half_float_casting",
        HalfFloatCastingBehavior,
        HalfFloatCastingBehavior.FloatDowncastToHalf,
        convert=_check_half_casting,
    )
    setPartialsType = Option("partials_type", _require_partials_type, torch.float32, parameter="dtype")
    enableStochasticRounding = Option("stochastic_rounding", bool, None, parameter="enabled")
    enableFloatingPointExceptions = Option("floating_point_exceptions", bool, False, parameter="exceptions")


class TensorLocationSettings(OptionsGroup):
    """Where the tensors of one kind lie; numbers and flags are stored as ints, as ``poptorch`` does."""

    minElementsForOffChip = Option("minElementsForOffChip", int, parameter="min_elements", convert=int)
    minElementsForReplicatedTensorSharding = Option(
        "minElementsForReplicatedTensorSharding", int, parameter="min_elements", convert=int
    )
    useReplicatedTensorSharding = Option(
        "useReplicatedTensorSharding", bool, parameter="use", omitted=True, convert=int
    )
    useIOTilesToLoad = Option("useIOTilesToLoad", bool, parameter="use", omitted=True, convert=int)
    useIOTilesToStore = Option("useIOTilesToStore", bool, parameter="use", omitted=True, convert=int)

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Store tensors on the chip, off it, or with ``None`` where the compiler puts them."""
        if use is None:
            self._values.pop("onChip", None)
            return self
        require_type(use, bool, "useOnChipStorage")
        self.set(onChip=int(use))
        return self


def _location(option: str) -> Option:
    return Option(option, TensorLocationSettings, {}, parameter="location", convert=lambda location: location.toDict())


class TensorLocationOptions(OptionsGroup):
    """Where tensors lie, on the chip or off it, which is only stored; reached as ``options.TensorLocations``."""

    setActivationLocation = _location("location_activation")
    setWeightLocation = _location("location_weight")
    setOptimizerLocation = _location("location_optimizer")
    setAccumulatorLocation = _location("location_accumulator")
    numIOTiles = Option("numIOTiles", _require_io_tiles, parameter="num_tiles")


class DistributedOptions(OptionsGroup):
    """Which part of the data this process reads; reached as ``options.Distributed``."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0)
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> Self:
        """Read all of the data."""
        return self.configureProcessId(0, 1)

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Read the part of process ``process_id`` out of ``num_processes``."""
        require_type(process_id, int, "process_id")
        require_count(num_processes, "num_processes")
        if not 0 <= process_id < num_processes:
            raise AssertionError(f"process_id must be from 0 to {num_processes - 1}; {process_id} was given")
        self.set(num_distributed_processes=num_processes, distributed_process_id=process_id)
        return self

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read both numbers from environment variables, where they are set."""
        if var_num_processes in os.environ and var_process_id in os.environ:
            self.configureProcessId(int(os.environ[var_process_id]), int(os.environ[var_num_processes]))
        return self

    @property
    def processId(self) -> int:
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        return int(self.num_distributed_processes)


class JitOptions(OptionsGroup):
    """Choice of a tracer in older scripts, which is only stored; reached as ``options.Jit``."""

    traceModel = Option("trace_model", bool)


class PopartOptions(OptionsGroup):
    """Options that go to the compiler unchanged, which are only stored; reached as ``options._Popart``."""

    setEngineOptions = Option("engineOptions", object, parameter="engine_options", convert=dict)

    def __init__(self) -> None:
        super().__init__(patterns={}, patterns_level=2)

    def set(self, key: str | None = None, value: Any = None, **values: Any) -> Self:  # type: ignore[override]
        """Set a compiler option by its name, or several; values may be lists and dicts."""
        require_type(key, (str, NoneType), "_Popart.set: the name")
        super().set(**({key: value} if key is not None else values))
        return self

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Turn compiler patterns on and off."""
        return self.set(patterns=dict(patterns), patterns_level=level)


class Options(OptionsGroup):
    """How a model is compiled and run; setters return the options, so that they can be chained."""

    # Weight updates, or inference batches, of one call.
    deviceIterations = Option("device_iterations", require_count, 1)
    # Copies of the model that work on different data.
    replicationFactor = Option("replication_factor", require_count, 1)
    # Require buffers to be equal on all replicas; otherwise each replica changes its own.
    broadcastBuffers = Option("broadcast_buffers", bool, True, omitted=True)
    # Buffers that `PoplarExecutor.copyNamedBuffersToDevice` uploads.
    updatableNamedBuffers = Option("updatable_named_buffers", list, [], parameter="buffers", convert=list)
    # Round the number of IPUs up to a power of two.
    autoRoundNumIPUs = Option("auto_round_num_ipus", bool, False, omitted=True)
    # When IPUs are taken.
    connectionType = Option("connection_type", ConnectionType, ConnectionType.Always)
    setExecutionStrategy = Option("execution_strategy", ExecutionStrategy, parameter="strategy")
    logCycleCount = Option("log_cycle_count", bool, False)
    # Only stored.
    useIpuModel = Option("use_model", bool)
    useIpuId = Option("ipu_id", int, None)
    syncPattern = Option("sync_pattern", SyncPattern, SyncPattern.Full)
    enableSyntheticData = Option("synthetic_data", bool, False, parameter="enabled")
    enableStableNorm = Option("stable_norm", bool, False, parameter="enabled")
    enableProfiling = Option("profile_dir", object, omitted=None, convert=lambda folder: folder or ".")
    logDir = Option("log_dir", str, ".")
    modelName = Option("model_name", str, None, parameter="name")
    maxRepeatLogs = Option("max_repeat_logs", _require_count_or_none, parameter="max_lines")
    relaxOptimizerAttributesChecks = Option("relax_optimizer_checks", bool, False, parameter="relax", omitted=True)
    sourceLocationExcludes = Option("source_location_excludes", list, [], parameter="excludes", convert=list)
    showCompilationProgressBar = Option("show_compilation_progress_bar", object, parameter="show", omitted=True)

    def __init__(self) -> None:
        super().__init__(
            input_group_size=1,
            output_mode=OutputMode.Default,
            output_return_period=1,
            execution_strategy=PipelinedExecution(),
            available_memory_proportion={},
            anchored_tensors={},
            random_seed=None,
            use_model=bool(int(os.environ.get("POPTORCH_IPU_MODEL", "0"))),
        )
        self.Training = TrainingOptions()
        self.Precision = PrecisionOptions()
        self.TensorLocations = TensorLocationOptions()
        self.Distributed = DistributedOptions()
        self.Jit = JitOptions()
        self._Popart = PopartOptions()
        if "POPTORCH_CACHE_DIR" in os.environ:
            self.enableExecutableCaching(os.environ["POPTORCH_CACHE_DIR"])
        for path, value in json.loads(os.environ.get("POPTORCH_DEFAULT_OPTIONS", "{}")).items():
            group: Any = self
            *names, setter = path.split(".")
            for name in names:
                group = getattr(group, name)
            getattr(group, setter)(value)

    @property
    def _popart(self) -> PopartOptions:
        return self._Popart

    def inputReplicaGrouping(self, input_group_size: int, *group_type: Any) -> Self:
        """Give the same inputs to groups of replicas."""
        require_count(input_group_size, "inputReplicaGrouping")
        self.set(input_group_size=input_group_size)
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Choose which micro-batch results a call returns.

        Args:
            output_mode: The choice.
            output_return_period: For ``EveryN``, the number of device iterations from one result to the next, of which
                the device iterations must be a multiple; ignored for other modes.
        """
        output_mode = _member(OutputMode, output_mode)
        require_type(output_mode, OutputMode, "outputMode")
        if output_mode is OutputMode.EveryN:
            require_count(output_return_period, "EveryN output_return_period")
        elif output_return_period:
            logger.info("`output_return_period=%s` has no effect with %s.", output_return_period, output_mode.name)
        self.set(output_mode=output_mode, output_return_period=output_return_period or 1)
        return self

    def defaultOutputMode(self) -> bool:
        """Return whether no output mode was chosen."""
        return bool(self.output_mode is OutputMode.Default)

    def randomSeed(self, random_seed: int) -> Self:
        """Seed the devices and torch's generator on the host, as ``poptorch`` does."""
        require_type(random_seed, int, "randomSeed")
        torch.manual_seed(random_seed)
        self.set(random_seed=random_seed)
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile without IPUs; the program cannot be run."""
        require_type(ipu_version, int, "useOfflineIpuTarget")
        self.set(connection_type=ConnectionType.Never, ipu_version=ipu_version)
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> Self:
        """Store the share of memory for matrix products on each IPU, by ``"IPU0"``, ``"IPU1"``, ..."""
        require_type(available_memory_proportion, dict, "setAvailableMemoryProportion")
        shares = {}
        for name, share in available_memory_proportion.items():
            number = re.fullmatch(r"IPU(\d+)", name)
            if number is None:
                raise AssertionError(f"setAvailableMemoryProportion takes names like 'IPU0'; {name!r} was given")
            shares[int(number[1])] = share
        self.set(available_memory_proportion=shares)
        return self

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Store the folder of compiled programs; the emulator writes none."""
        self._Popart.set(enableEngineCaching=path is not None, cachePath=path)
        return self

    def anchorTensor(
        self, short_name: str, long_name: str, output_mode: OutputMode | None = None, output_return_period: int = 1
    ) -> Self:
        """Keep a tensor of the last weight update, for ``PoplarExecutor.getAnchoredTensor``.

        Args:
            short_name: Name to get it by.
            long_name: ``"Gradient___"`` or ``"UpdatedVar___"`` with the name of a parameter, for its gradient (reduced
                and divided by the loss scaling) or its value after the update.
            output_mode: ``Final``, which ``None`` means too.
            output_return_period: Ignored.

        Raises:
            Error: For another output mode.
        """
        if output_mode not in (None, OutputMode.Final):
            raise Error(
                f"anchorTensor({short_name!r}, {long_name!r}) asks for {output_mode!r}, but the emulator keeps "
                "tensors of the last weight update only; use poptorch.OutputMode.Final, or return them from `forward`."
            )
        self.set(anchored_tensors={**self.anchored_tensors, short_name: long_name})
        return self

    def disableModuleNamescope(self) -> Self:
        """Store that operations are not named after modules."""
        self.set(disable_module_namescope=True)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Store more files to leave out of source locations."""
        return self.sourceLocationExcludes([*self.source_location_excludes, *excludes])

    def clone(self) -> Self:
        return copy.deepcopy(self)

    def toDict(self) -> dict[str, Any]:
        """Return the options of all groups by name.

        Raises:
            AssertionError: If no output mode was chosen.
        """
        if self.defaultOutputMode():
            raise AssertionError("An output mode must be picked before the options are used")
        merged = super().toDict()
        for group in self._subgroups():
            merged.update(group.toDict())
        return merged

    def loadFromFile(self, filepath: str) -> Self:
        """Call the setters listed in a file, one per line, such as ``Training.gradientAccumulation(8)``.

        Raises:
            ConfigFileError: If a line cannot be executed.
        """
        # The package imports this module, which therefore cannot import it.
        names = {"options": self, "poptorch": sys.modules[__package__], "torch": torch}
        for number, line in enumerate(Path(filepath).read_text(encoding="utf-8").splitlines(), 1):
            call = line.split("#")[0].strip()
            if not call:
                continue
            try:
                _evaluate(ast.parse(f"options.{call}", mode="eval").body, names)
            except Exception as error:
                raise ConfigFileError(f"{filepath}, line {number}: `{call}` cannot be used: {error}") from error
        return self


def _evaluate(node: ast.expr, names: Mapping[str, object]) -> Any:
    """Return the value of an expression in a file of options: calls and attributes of ``names``, and literals."""
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(_evaluate(node.value, names), node.attr)
    if isinstance(node, ast.Call):
        args = [_evaluate(argument, names) for argument in node.args]
        keywords = {str(keyword.arg): _evaluate(keyword.value, names) for keyword in node.keywords}
        return _evaluate(node.func, names)(*args, **keywords)
    if isinstance(node, ast.List | ast.Tuple):
        return [_evaluate(item, names) for item in node.elts]
    return ast.literal_eval(node)
