"""How blocks of a model become stages that run one after another or at once."""

from typing import Any

from portico.ipu.emulator.enums import AutoStage
from portico.ipu.emulator.options.group import require_type


class Stage:
    """Blocks that run together.

    Args:
        *block_ids: Names of the blocks.
    """

    def __init__(self, *block_ids: str) -> None:
        for block_id in block_ids:
            require_type(block_id, str, "block id")
        self.blocks = block_ids
        self.ipu_id: int | None = None

    def ipu(self, ipu: int) -> "Stage":
        """Put the stage on an IPU."""
        require_type(ipu, int, "ipu")
        self.ipu_id = ipu
        return self


def _stage(described: Any) -> Stage:
    if isinstance(described, Stage):
        return described
    return Stage(described) if isinstance(described, str) else Stage(*described)


class _Staged:
    stages: tuple[Stage, ...] = ()
    auto_stage = AutoStage.SameAsIpu

    def __init__(self, *args: Any) -> None:
        # `PipelinedExecution(AutoStage.X)`, or stages and block names in order.
        if len(args) == 1 and isinstance(args[0], AutoStage):
            self.auto_stage = args[0]
            return
        for argument in args:
            require_type(argument, (Stage, str, list, tuple), "stage")
        self.stages = tuple(_stage(one) for one in args)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.auto_stage.name})"


class PipelinedExecution(_Staged):
    """Stages work at the same time, each on another micro-batch."""


class ShardedExecution(_Staged):
    """Stages work one after another."""


class _PhasedExecution:
    def __init__(self, *args: Any) -> None:
        raise NotImplementedError(
            f"{type(self).__name__} is not emulated; use poptorch.PipelinedExecution or poptorch.ShardedExecution."
        )


class SerialPhasedExecution(_PhasedExecution):
    """Not emulated."""


class ParallelPhasedExecution(_PhasedExecution):
    """Not emulated."""


class Phase(_PhasedExecution):
    """Not emulated."""
