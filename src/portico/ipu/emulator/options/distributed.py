"""Options of runs over several processes, of tracing, and of the compiler."""

import os
from typing import Any

from portico.ipu.emulator.options.group import OptionsGroup, require_count, require_type


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
