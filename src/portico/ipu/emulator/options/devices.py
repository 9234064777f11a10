"""Options of devices: how many, when they are taken, how stages share them."""

import re
from typing import Any, Self

from portico.ipu.emulator.enums import ConnectionType, SyncPattern
from portico.ipu.emulator.options.execution import ExecutionStrategy
from portico.ipu.emulator.options.group import OptionsGroup, require_type

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
