"""``Options``: how a model is compiled and run."""

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from portico.ipu.emulator.enums import ConnectionType, OutputMode, SyncPattern
from portico.ipu.emulator.errors import ConfigFileError
from portico.ipu.emulator.options.batching import BatchingOptions
from portico.ipu.emulator.options.devices import DeviceOptions
from portico.ipu.emulator.options.distributed import DistributedOptions, JitOptions, PopartOptions
from portico.ipu.emulator.options.execution import PipelinedExecution
from portico.ipu.emulator.options.group import require_type
from portico.ipu.emulator.options.locations import TensorLocationOptions
from portico.ipu.emulator.options.precision import PrecisionOptions
from portico.ipu.emulator.options.stored import StoredOptions
from portico.ipu.emulator.options.training import TrainingOptions


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
    return sys.modules[__name__.partition(".options")[0]]
