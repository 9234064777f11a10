"""What all groups of options share: checked setters, freezing, copies."""

import copy
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
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
from poptorch_emulator.errors import ConfigFileError, require_count, require_type
from poptorch_emulator.execution import ExecutionStrategy, PipelinedExecution

Group = TypeVar("Group", bound="OptionsGroup")


class OptionsGroup:
    """Named values that setters change until a loader or an executor freezes them.

    Values are read as attributes. A change after freezing raises ``AttributeError``.

    Args:
        **defaults: Every option with its default.
    """

    _values: dict[str, Any]
    _is_frozen: bool

    def __init__(self, **defaults: Any) -> None:
        object.__setattr__(self, "_values", defaults)
        object.__setattr__(self, "_is_frozen", False)

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` look names up before the values exist.
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"{type(self).__name__} has no option {name!r}; it has {', '.join(sorted(values))}")

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")
        if name in self._values:
            self._values[name] = value
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
        """Tell whether there is an option ``name``."""
        return name in self._values

    def toDict(self) -> dict[str, Any]:
        """Return the options by name."""
        return dict(self._values)

    def freeze(self) -> None:
        """Refuse every later change."""
        object.__setattr__(self, "_is_frozen", True)
        for group in self._subgroups():
            group.freeze()

    def _subgroups(self) -> list["OptionsGroup"]:
        return [value for value in self.__dict__.values() if isinstance(value, OptionsGroup)]

    def __deepcopy__(self: Group, memo: dict[int, Any]) -> Group:
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

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


class BatchingOptions(OptionsGroup):
    """Setters of what one call takes, and what it returns."""

    def deviceIterations(self, device_iterations: int) -> Self:
        """Set how many weight updates (or inference batches) one call makes."""
        require_count(device_iterations, "deviceIterations")
        self.set(device_iterations=device_iterations)
        return self

    def replicationFactor(self, replication_factor: int) -> Self:
        """Set how many copies of the model work on other data."""
        require_count(replication_factor, "replicationFactor")
        self.set(replication_factor=replication_factor)
        return self

    def inputReplicaGrouping(self, input_group_size: int, *group_type: Any) -> Self:
        """Give the same inputs to groups of replicas."""
        require_count(input_group_size, "inputReplicaGrouping")
        self.set(input_group_size=input_group_size)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Require buffers to be the same on all replicas; ``False`` lets each replica change its own."""
        require_type(broadcast_buffers, bool, "broadcastBuffers")
        self.set(broadcast_buffers=broadcast_buffers)
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Choose which micro-batch results a call returns.

        Args:
            output_mode: The choice.
            output_return_period: For ``EveryN``: every how many device iterations.
        """
        require_type(output_mode, OutputMode, "outputMode")
        if output_mode is OutputMode.EveryN:
            require_count(output_return_period, "EveryN output_return_period")
        elif output_return_period not in (None, 1):
            raise AssertionError("output_return_period belongs to OutputMode.EveryN only")
        self.set(output_mode=output_mode, output_return_period=output_return_period or 1)
        return self


_IPU_NAME = re.compile(r"IPU(\d+)")


class DeviceOptions(OptionsGroup):
    """Setters of how many IPUs there are, when they are taken, and how stages share them."""

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Take the next power of two of IPUs."""
        require_type(auto_round_num_ipus, bool, "autoRoundNumIPUs")
        self.set(auto_round_num_ipus=auto_round_num_ipus)
        return self

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Choose when IPUs are taken."""
        require_type(connection_type, ConnectionType, "connectionType")
        self.set(connection_type=connection_type)
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile without IPUs; the program cannot be run."""
        require_type(ipu_version, int, "useOfflineIpuTarget")
        self.set(connection_type=ConnectionType.Never, ipu_version=ipu_version)
        return self

    def useIpuModel(self, use_model: bool) -> Self:
        """Store the choice; the emulator is a model of an IPU anyway."""
        require_type(use_model, bool, "useIpuModel")
        self.set(use_model=use_model)
        return self

    def useIpuId(self, ipu_id: int) -> Self:
        """Store which IPU is asked for."""
        require_type(ipu_id, int, "useIpuId")
        self.set(ipu_id=ipu_id)
        return self

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Store how IPUs wait for each other."""
        require_type(sync_pattern, SyncPattern, "syncPattern")
        self.set(sync_pattern=sync_pattern)
        return self

    def setExecutionStrategy(self, strategy: Any) -> Self:
        """Choose how stages run."""
        require_type(strategy, ExecutionStrategy, "setExecutionStrategy")
        self.set(execution_strategy=strategy)
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> Self:
        """Store the share of memory that matrix products may take on each IPU, by ``"IPU0"``, ``"IPU1"``, ..."""
        require_type(available_memory_proportion, dict, "setAvailableMemoryProportion")
        shares = {}
        for name, share in available_memory_proportion.items():
            number = _IPU_NAME.fullmatch(name)
            if number is None:
                raise AssertionError(f"setAvailableMemoryProportion takes names like 'IPU0'; {name!r} was given")
            shares[int(number[1])] = share
        self.set(available_memory_proportion=shares)
        return self


class StoredOptions(OptionsGroup):
    """Setters of what changes nothing here."""

    def anchorTensor(
        self, short_name: str, long_name: str, output_mode: Any = None, output_return_period: int = 1
    ) -> Self:
        """Store the name of a tensor to keep; the emulator names none."""
        self.anchored_tensors[short_name] = [long_name, output_mode, output_return_period]
        return self

    def enableSyntheticData(self, enabled: bool) -> Self:
        """Store the choice; the emulator computes with the real data."""
        require_type(enabled, bool, "enableSyntheticData")
        self.set(synthetic_data=enabled)
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Store the choice; torch's norms are stable."""
        require_type(enabled, bool, "enableStableNorm")
        self.set(stable_norm=enabled)
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Store the choice; the emulator has no profile."""
        self.set(profile_dir=profile_dir or ".")
        return self

    def logDir(self, log_dir: str) -> Self:
        """Store where logs go."""
        require_type(log_dir, str, "logDir")
        self.set(log_dir=log_dir)
        return self

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Store whether cycles are counted."""
        require_type(log_cycle_count, bool, "logCycleCount")
        self.set(log_cycle_count=log_cycle_count)
        return self

    def modelName(self, name: str) -> Self:
        """Name the model in profiles."""
        require_type(name, str, "modelName")
        self.set(model_name=name)
        return self

    def disableModuleNamescope(self) -> Self:
        """Store that operations are not named after modules; the emulator names none."""
        self.set(disable_module_namescope=True)
        return self

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Store how often a message is repeated."""
        if max_lines is not None:
            require_count(max_lines, "maxRepeatLogs")
        self.set(max_repeat_logs=max_lines)
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Store how loudly unknown attributes of optimizers are reported; here they are passed over."""
        require_type(relax, bool, "relaxOptimizerAttributesChecks")
        self.set(relax_optimizer_checks=relax)
        return self

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Store which files are left out of source locations, instead of those so far."""
        require_type(excludes, list, "sourceLocationExcludes")
        self.set(source_location_excludes=list(excludes))
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Store the choice; compiling takes no time here."""
        self.set(show_compilation_progress_bar=show)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Store more files to leave out of source locations."""
        self.set(source_location_excludes=[*self.source_location_excludes, *excludes])
        return self


class TrainingOptions(OptionsGroup):
    """Accumulation, reduction and loss scaling; reached as ``options.Training``."""

    def __init__(self) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
            auto_loss_scaling=False,
            convolution_dithering=False,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> "TrainingOptions":
        """Set how many micro-batches of a replica make one weight update."""
        require_count(gradient_accumulation, "gradientAccumulation")
        self.set(gradient_accumulation=gradient_accumulation)
        return self

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> "TrainingOptions":
        """Set how gradients of micro-batches and replicas become one: mean or sum.

        Raises:
            ValueError: For ``ReductionType.NoReduction``.
        """
        require_type(reduction_type, ReductionType, "accumulationAndReplicationReductionType")
        if reduction_type is ReductionType.NoReduction:
            raise ValueError(
                "accumulationAndReplicationReductionType cannot be ReductionType.NoReduction: gradients of several "
                "micro-batches have to become one; use ReductionType.Mean or ReductionType.Sum."
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> "TrainingOptions":
        """Set whether a mean gradient is kept running or divided out at the end."""
        require_type(mean_reduction_strategy, MeanReductionStrategy, "mean_reduction_strategy")
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        return self

    def setAutomaticLossScaling(self, enabled: bool) -> "TrainingOptions":
        """Adapt the loss scaling to the size of the gradients after every update."""
        require_type(enabled, bool, "setAutomaticLossScaling")
        self.set(auto_loss_scaling=enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> "TrainingOptions":
        """Store the choice; it has no numeric effect."""
        require_type(enabled, bool, "setConvolutionDithering")
        self.set(convolution_dithering=enabled)
        return self


class FloatingPointExceptions:
    """Which floating-point events stop a program.

    Args:
        inv: Invalid operations.
        div0: Divisions by zero.
        oflo: Overflows.
        nanoo: Not-a-number on overflow.
        esr: Stochastic rounding.
    """

    def __init__(self, inv: bool, div0: bool, oflo: bool, nanoo: bool, esr: bool) -> None:
        self.settings: Mapping[str, bool] = {"inv": inv, "div0": div0, "oflo": oflo, "nanoo": nanoo, "esr": esr}


class PrecisionOptions(OptionsGroup):
    """Number formats; reached as ``options.Precision``. The emulator stores them and computes as torch does."""

    def __init__(self) -> None:
        super().__init__(
            running_statistics_always_float=True,
            half_float_casting=HalfFloatCastingBehavior.FloatDowncastToHalf,
            partials_type=torch.float32,
            stochastic_rounding=None,
            floating_point_exceptions=False,
        )

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> "PrecisionOptions":
        """Set what a mix of half and single precision becomes.

        Raises:
            ValueError: For anything but ``FloatDowncastToHalf``, as torch itself decides.
        """
        require_type(half_float_casting, HalfFloatCastingBehavior, "halfFloatCasting")
        if half_float_casting is not HalfFloatCastingBehavior.FloatDowncastToHalf:
            raise ValueError(
                f"halfFloatCasting does not support {half_float_casting.name}; convert tensors with `.float()` where "
                "half and single precision meet."
            )
        self.set(half_float_casting=half_float_casting)
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> "PrecisionOptions":
        """Keep running means and variances in single precision."""
        require_type(value, bool, "runningStatisticsAlwaysFloat")
        self.set(running_statistics_always_float=value)
        return self

    def enableFloatingPointExceptions(self, exceptions: bool) -> "PrecisionOptions":
        """Store whether floating-point events stop a program."""
        require_type(exceptions, bool, "enableFloatingPointExceptions")
        self.set(floating_point_exceptions=exceptions)
        return self

    def enableStochasticRounding(self, enabled: bool) -> "PrecisionOptions":
        """Store the choice; the emulator rounds to nearest."""
        require_type(enabled, bool, "enableStochasticRounding")
        self.set(stochastic_rounding=enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> "PrecisionOptions":
        """Store the format of partial sums of matrix products.

        Raises:
            ValueError: If it is neither ``torch.float32`` nor ``torch.float16``.
        """
        require_type(dtype, torch.dtype, "setPartialsType")
        if dtype not in (torch.float32, torch.float16):
            raise ValueError(f"setPartialsType takes torch.float32 or torch.float16; {dtype} was given.")
        self.set(partials_type=dtype)
        return self


class TensorLocationSettings(OptionsGroup):
    """Where the tensors of one kind lie; values are kept as 0 and 1, as ``poptorch`` keeps them."""

    def __init__(self) -> None:
        super().__init__()

    def _set_number(self, **values: Any) -> "TensorLocationSettings":
        self.set(**{name: int(value) for name, value in values.items()})
        return self

    def minElementsForOffChip(self, min_elements: int) -> "TensorLocationSettings":
        """Leave smaller tensors on the chip."""
        require_type(min_elements, int, "minElementsForOffChip")
        return self._set_number(minElementsForOffChip=min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> "TensorLocationSettings":
        """Leave smaller tensors whole."""
        require_type(min_elements, int, "minElementsForReplicatedTensorSharding")
        return self._set_number(minElementsForReplicatedTensorSharding=min_elements)

    def useOnChipStorage(self, use: bool) -> "TensorLocationSettings":
        """Keep them on the chip."""
        require_type(use, bool, "useOnChipStorage")
        return self._set_number(onChip=use)

    def useReplicatedTensorSharding(self, use: bool) -> "TensorLocationSettings":
        """Cut them over the replicas."""
        require_type(use, bool, "useReplicatedTensorSharding")
        return self._set_number(useReplicatedTensorSharding=use)

    def useIOTilesToLoad(self, use: bool) -> "TensorLocationSettings":
        """Load through input tiles."""
        require_type(use, bool, "useIOTilesToLoad")
        return self._set_number(useIOTilesToLoad=use)

    def useIOTilesToStore(self, use: bool) -> "TensorLocationSettings":
        """Store through output tiles."""
        require_type(use, bool, "useIOTilesToStore")
        return self._set_number(useIOTilesToStore=use)


class TensorLocationOptions(OptionsGroup):
    """Where activations, weights, optimizer state and accumulators lie; reached as ``options.TensorLocations``."""

    def __init__(self) -> None:
        super().__init__(
            location_activation={}, location_weight={}, location_optimizer={}, location_accumulator={}, num_io_tiles=0
        )

    def _set_location(self, name: str, location: TensorLocationSettings) -> "TensorLocationOptions":
        require_type(location, TensorLocationSettings, name)
        self.set(**{name: location.toDict()})
        return self

    def numIOTiles(self, num_tiles: int) -> "TensorLocationOptions":
        """Set the number of tiles for input and output."""
        require_count(num_tiles, "numIOTiles")
        self.set(num_io_tiles=num_tiles)
        return self

    def setActivationLocation(self, location: TensorLocationSettings) -> "TensorLocationOptions":
        """Place activations."""
        return self._set_location("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> "TensorLocationOptions":
        """Place weights."""
        return self._set_location("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> "TensorLocationOptions":
        """Place the optimizer's state."""
        return self._set_location("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> "TensorLocationOptions":
        """Place gradient accumulators."""
        return self._set_location("location_accumulator", location)


class DistributedOptions(OptionsGroup):
    """Which part of the data this process reads; reached as ``options.Distributed``."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0)
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> "DistributedOptions":
        """Read all of the data."""
        return self.configureProcessId(0, 1)

    def configureProcessId(self, process_id: int, num_processes: int) -> "DistributedOptions":
        """Read the part of process ``process_id`` out of ``num_processes``."""
        require_type(process_id, int, "process_id")
        require_count(num_processes, "num_processes")
        if not 0 <= process_id < num_processes:
            raise AssertionError(f"process_id must be from 0 to {num_processes - 1}; {process_id} was given")
        self.set(num_distributed_processes=num_processes, distributed_process_id=process_id)
        return self

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> "DistributedOptions":
        """Read both numbers from environment variables, where they are set."""
        if var_num_processes in os.environ and var_process_id in os.environ:
            self.configureProcessId(int(os.environ[var_process_id]), int(os.environ[var_num_processes]))
        return self

    @property
    def processId(self) -> int:
        """Number of this process."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return int(self.num_distributed_processes)


class JitOptions(OptionsGroup):
    """How Python becomes a program; reached as ``options.Jit``."""

    def traceModel(self, trace_model: bool) -> "JitOptions":
        """Store the choice of older scripts between two tracers; the emulator runs Python either way."""
        require_type(trace_model, bool, "traceModel")
        self.set(trace_model=trace_model)
        return self


class PopartOptions(OptionsGroup):
    """What is handed to the compiler as it is, stored only; reached as ``options._Popart``."""

    def __init__(self) -> None:
        super().__init__(patterns={}, patterns_level=2)

    def set(self, key: str | None = None, value: Any = None, **values: Any) -> "PopartOptions":  # type: ignore[override]
        """Set a compiler option."""
        super().set(**({key: value} if key is not None else values))
        return self

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> "PopartOptions":
        """Turn compiler patterns on and off."""
        return self.set(patterns=dict(patterns), patterns_level=level)

    def setEngineOptions(self, engine_options: dict[str, str]) -> "PopartOptions":
        """Set options of the engine."""
        return self.set(engineOptions=dict(engine_options))


class Options(BatchingOptions, DeviceOptions, StoredOptions):
    """How a model is compiled and run; setters return the options, so that they can be chained.

    Attributes:
        Training: Accumulation, reduction, loss scaling.
        Precision: Number formats.
        TensorLocations: On the chip or beside it.
        Distributed: Several processes.
        Jit: Tracing.
        _Popart: What goes to the compiler as it is.
    """

    def __init__(self) -> None:
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            broadcast_buffers=True,
            device_iterations=1,
            auto_round_num_ipus=False,
            output_mode=OutputMode.Default,
            output_return_period=1,
            connection_type=ConnectionType.Always,
            sync_pattern=SyncPattern.Full,
            available_memory_proportion={},
            execution_strategy=PipelinedExecution(),
            anchored_tensors={},
            updatable_named_buffers=[],
            random_seed=None,
            log_dir=".",
            model_name=None,
            use_model=bool(int(os.environ.get("POPTORCH_IPU_MODEL", "0"))),
            ipu_id=None,
            synthetic_data=False,
            stable_norm=False,
            log_cycle_count=False,
            source_location_excludes=[],
            relax_optimizer_checks=False,
        )
        self.Training = TrainingOptions()
        self.Precision = PrecisionOptions()
        self.TensorLocations = TensorLocationOptions()
        self.Distributed = DistributedOptions()
        self.Jit = JitOptions()
        self._Popart = PopartOptions()
        if "POPTORCH_CACHE_DIR" in os.environ:
            self.enableExecutableCaching(os.environ["POPTORCH_CACHE_DIR"])
        for setter, value in json.loads(os.environ.get("POPTORCH_DEFAULT_OPTIONS", "{}")).items():
            self._apply(setter, value)

    @property
    def _popart(self) -> PopartOptions:
        return self._Popart

    def randomSeed(self, random_seed: int) -> "Options":
        """Seed the devices, and torch's generator on the host too, as ``poptorch`` does."""
        require_type(random_seed, int, "randomSeed")
        torch.manual_seed(random_seed)
        self.set(random_seed=random_seed)
        return self

    def updatableNamedBuffers(self, buffers: list[str]) -> "Options":
        """Name buffers that :meth:`PoplarExecutor.copyNamedBuffersToDevice` uploads."""
        require_type(buffers, list, "updatableNamedBuffers")
        self.set(updatable_named_buffers=list(buffers))
        return self

    def enableExecutableCaching(self, path: str | None) -> "Options":
        """Store where compiled programs are kept."""
        self._Popart.set(enableEngineCaching=path is not None, cachePath=path)
        return self

    def clone(self) -> "Options":
        """Return a copy that can be changed."""
        return copy.deepcopy(self)

    def toDict(self) -> dict[str, Any]:
        """Return all options of all groups by name.

        Raises:
            AssertionError: If no output mode was chosen yet.
        """
        if self.output_mode is OutputMode.Default:
            raise AssertionError("An output mode must be picked before the options are used")
        merged = super().toDict()
        for group in self._subgroups():
            merged.update(group.toDict())
        return merged

    def loadFromFile(self, filepath: str) -> "Options":
        """Call the setters that a file lists, one a line, as in ``Training.gradientAccumulation(8)``.

        Raises:
            ConfigFileError: If a line is none.
        """
        for number, line in enumerate(Path(filepath).read_text(encoding="utf-8").splitlines(), 1):
            call = line.split("#")[0].strip()
            if not call:
                continue
            try:
                exec(f"options.{call}", {"options": self, "poptorch": _namespace(), "torch": torch})
            except Exception as error:
                raise ConfigFileError(f"{filepath}, line {number}: `{call}` cannot be used: {error}") from error
        return self

    def _apply(self, setter: str, value: Any) -> None:
        group: Any = self
        *path, name = setter.split(".")
        for part in path:
            group = getattr(group, part)
        getattr(group, name)(value)


def _namespace() -> Any:
    # The package imports this module, which therefore cannot import it.
    return sys.modules[__package__]
