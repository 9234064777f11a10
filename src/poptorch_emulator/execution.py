"""Execution strategies: which blocks of a model form a stage, and whether stages run in turn or at the same time."""

from typing import Any, Self

from poptorch_emulator.enums import AutoStage, Liveness
from poptorch_emulator.errors import require_type


class Stage:
    """Blocks that run together."""

    def __init__(self, *block_ids: str) -> None:
        for block_id in block_ids:
            require_type(block_id, str, "block id")
        self.blocks = block_ids
        self.ipu_id: int | None = None

    def ipu(self, ipu: int) -> Self:
        require_type(ipu, int, "ipu")
        self.ipu_id = ipu
        return self


class Phase:
    """Stages that run at the same time, before the stages of the next phase.

    Args:
        *args: Stages, or names of blocks that form one stage.
    """

    def __init__(self, *args: Stage | str) -> None:
        for argument in args:
            require_type(argument, (Stage, str), "Phase")
        stages = tuple(argument for argument in args if isinstance(argument, Stage))
        if stages and len(stages) != len(args):
            raise AssertionError("Phase takes stages or names of blocks, not both")
        self.stages = stages or (Stage(*(argument for argument in args if isinstance(argument, str))),)

    def stage(self, idx: int) -> Stage:
        return self.stages[idx]

    def ipus(self, *ipus: int) -> Self:
        """Place each stage on an IPU.

        Raises:
            AssertionError: If the number of IPUs is not the number of stages.
        """
        if len(ipus) != len(self.stages):
            raise AssertionError(f"Phase.ipus got {len(ipus)} IPU(s) for {len(self.stages)} stage(s)")
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)
        return self


class ExecutionStrategy:
    """How the stages of a program run.

    Attributes:
        stages: Stages in order; one without an IPU is placed by its position.
    """

    stages: tuple[Stage, ...] = ()

    def stage(self, block_id: str) -> Stage:
        """Return the stage of a block.

        Raises:
            AssertionError: If no stage has the block.
        """
        for stage in self.stages:
            if block_id in stage.blocks:
                return stage
        known = ", ".join(block for stage in self.stages for block in stage.blocks)
        raise AssertionError(f"No stage has a block {block_id!r}; the blocks are {known or 'none'}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__


class _StagedExecution(ExecutionStrategy):
    """Takes an ``AutoStage``, or stages (or names of their blocks) in order."""

    auto_stage = AutoStage.SameAsIpu

    def __init__(self, *args: Any) -> None:
        if len(args) == 1 and isinstance(args[0], AutoStage):
            self.auto_stage = args[0]
        else:
            self.stages = tuple(_convert(argument, Stage) for argument in args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.auto_stage.name})"


class PipelinedExecution(_StagedExecution):
    """Stages work at the same time, each on another micro-batch."""


class ShardedExecution(_StagedExecution):
    """Stages work one after another."""


class _PhasedExecution(ExecutionStrategy):
    """Takes phases (or stages or names of blocks that form one) in order."""

    def __init__(self, *phases: Any) -> None:
        self._phases = [_convert(phase, Phase) for phase in phases]
        for number, phase in enumerate(self._phases):
            for place, stage in enumerate(phase.stages):
                stage.ipu_id = self._ipu_of(number, place) if stage.ipu_id is None else stage.ipu_id
        self.stages = tuple(stage for phase in self._phases for stage in phase.stages)
        self.separate_backward_phase = False

    def phase(self, phase: int) -> Phase:
        require_type(phase, int, "phase")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Store whether the backward pass has its own phases; results do not depend on it."""
        require_type(use, bool, "useSeparateBackwardPhase")
        self.separate_backward_phase = use
        return self

    def _ipu_of(self, phase: int, place: int) -> int:
        return place

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._phases)} phases)"


class SerialPhasedExecution(_PhasedExecution):
    """Phases run one after another on the same IPUs."""

    liveness = Liveness.AlwaysLive

    def setTensorsLiveness(self, liveness: Liveness) -> Self:
        """Store which tensors stay on the chip; results do not depend on it."""
        require_type(liveness, Liveness, "setTensorsLiveness")
        self.liveness = liveness
        return self


class ParallelPhasedExecution(_PhasedExecution):
    """Phases run one after another, alternating between the IPUs with even and those with odd numbers."""

    sends_tensors_off_chip = False

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> Self:
        """Store whether tensors pass through memory off the chip; results do not depend on it."""
        require_type(off_chip, bool, "sendTensorsOffChipAfterFwd")
        self.sends_tensors_off_chip = off_chip
        return self

    def _ipu_of(self, phase: int, place: int) -> int:
        return 2 * place + phase % 2


def _convert(value: Any, kind: type) -> Any:
    require_type(value, (kind, str, list, tuple), kind.__name__.lower())
    if isinstance(value, kind):
        return value
    return kind(value) if isinstance(value, str) else kind(*value)
