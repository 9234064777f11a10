"""Options of batches: what one call takes, and what it returns."""

from typing import Any, Self

from portico.ipu.emulator.enums import OutputMode
from portico.ipu.emulator.options.group import OptionsGroup, require_count, require_type


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
