"""``Options``: how a model is compiled and run."""

import copy
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch

from portico.ipu.emulator.enums import ConnectionType, OutputMode, SyncPattern
from portico.ipu.emulator.errors import ConfigFileError
from portico.ipu.emulator.options.distributed import DistributedOptions, JitOptions, PopartOptions
from portico.ipu.emulator.options.execution import PipelinedExecution, ShardedExecution
from portico.ipu.emulator.options.group import OptionsGroup, require_count, require_type
from portico.ipu.emulator.options.locations import TensorLocationOptions
from portico.ipu.emulator.options.precision import PrecisionOptions
from portico.ipu.emulator.options.training import TrainingOptions

_IPU_NAME = re.compile(r"IPU(\d+)")


class Options(OptionsGroup):
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

    # Batches

    def deviceIterations(self, device_iterations: int) -> "Options":
        """Set how many weight updates (or inference batches) one call makes."""
        require_count(device_iterations, "deviceIterations")
        self.set(device_iterations=device_iterations)
        return self

    def replicationFactor(self, replication_factor: int) -> "Options":
        """Set how many copies of the model work on other data."""
        require_count(replication_factor, "replicationFactor")
        self.set(replication_factor=replication_factor)
        return self

    def inputReplicaGrouping(self, input_group_size: int, *group_type: Any) -> "Options":
        """Give the same inputs to groups of replicas."""
        require_count(input_group_size, "inputReplicaGrouping")
        self.set(input_group_size=input_group_size)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> "Options":
        """Require buffers to be the same on all replicas; ``False`` lets each replica change its own."""
        require_type(broadcast_buffers, bool, "broadcastBuffers")
        self.set(broadcast_buffers=broadcast_buffers)
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> "Options":
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

    # Devices

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> "Options":
        """Take the next power of two of IPUs."""
        require_type(auto_round_num_ipus, bool, "autoRoundNumIPUs")
        self.set(auto_round_num_ipus=auto_round_num_ipus)
        return self

    def connectionType(self, connection_type: ConnectionType) -> "Options":
        """Choose when IPUs are taken."""
        require_type(connection_type, ConnectionType, "connectionType")
        self.set(connection_type=connection_type)
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> "Options":
        """Compile without IPUs; the program cannot be run."""
        require_type(ipu_version, int, "useOfflineIpuTarget")
        self.set(connection_type=ConnectionType.Never, ipu_version=ipu_version)
        return self

    def useIpuModel(self, use_model: bool) -> "Options":
        """Store the choice; the emulator is a model of an IPU anyway."""
        require_type(use_model, bool, "useIpuModel")
        self.set(use_model=use_model)
        return self

    def useIpuId(self, ipu_id: int) -> "Options":
        """Store which IPU is asked for."""
        require_type(ipu_id, int, "useIpuId")
        self.set(ipu_id=ipu_id)
        return self

    def syncPattern(self, sync_pattern: SyncPattern) -> "Options":
        """Store how IPUs wait for each other."""
        require_type(sync_pattern, SyncPattern, "syncPattern")
        self.set(sync_pattern=sync_pattern)
        return self

    def setExecutionStrategy(self, strategy: Any) -> "Options":
        """Choose how stages run."""
        require_type(strategy, (PipelinedExecution, ShardedExecution), "setExecutionStrategy")
        self.set(execution_strategy=strategy)
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> "Options":
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

    # The rest

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

    def anchorTensor(
        self, short_name: str, long_name: str, output_mode: Any = None, output_return_period: int = 1
    ) -> "Options":
        """Store the name of a tensor to keep; the emulator names none."""
        self.anchored_tensors[short_name] = [long_name, output_mode, output_return_period]
        return self

    def enableExecutableCaching(self, path: str | None) -> "Options":
        """Store where compiled programs are kept."""
        self._Popart.set(enableEngineCaching=path is not None, cachePath=path)
        return self

    def enableSyntheticData(self, enabled: bool) -> "Options":
        """Store the choice; the emulator computes with the real data."""
        require_type(enabled, bool, "enableSyntheticData")
        self.set(synthetic_data=enabled)
        return self

    def enableStableNorm(self, enabled: bool) -> "Options":
        """Store the choice; torch's norms are stable."""
        require_type(enabled, bool, "enableStableNorm")
        self.set(stable_norm=enabled)
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> "Options":
        """Store the choice; the emulator has no profile."""
        self.set(profile_dir=profile_dir or ".")
        return self

    def logDir(self, log_dir: str) -> "Options":
        """Store where logs go."""
        self.set(log_dir=log_dir)
        return self

    def logCycleCount(self, log_cycle_count: bool) -> "Options":
        """Store whether cycles are counted."""
        require_type(log_cycle_count, bool, "logCycleCount")
        self.set(log_cycle_count=log_cycle_count)
        return self

    def modelName(self, name: str) -> "Options":
        """Name the model in profiles."""
        self.set(model_name=name)
        return self

    def showCompilationProgressBar(self, show: bool = True) -> "Options":
        """Store the choice; compiling takes no time here."""
        self.set(show_compilation_progress_bar=show)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> "Options":
        """Store which files are left out of source locations."""
        self.set(source_location_excludes=list(excludes))
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
    return sys.modules[__name__.partition(".options")[0]]
