"""How blocks of a model become stages that run one after another or at once."""

from typing import Any

from poptorch_emulator.enums import AutoStage, Liveness
from poptorch_emulator.errors import require_type


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


class ExecutionStrategy:
    """How the stages of a program run.

    Attributes:
        stages: Stages in order; where one names no IPU, its place in the order does.
    """

    stages: tuple[Stage, ...] = ()

    def stage(self, block_id: str) -> Stage:
        """Return the stage that a block belongs to.

        Raises:
            AssertionError: If it belongs to none.
        """
        for stage in self.stages:
            if block_id in stage.blocks:
                return stage
        known = ", ".join(block for stage in self.stages for block in stage.blocks)
        raise AssertionError(f"No stage has a block {block_id!r}; the blocks are {known or 'none'}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class _Staged(ExecutionStrategy):
    auto_stage = AutoStage.SameAsIpu

    def __init__(self, *args: Any) -> None:
        # `PipelinedExecution(AutoStage.X)`, or stages and block names in order.
        if len(args) == 1 and isinstance(args[0], AutoStage):
            self.auto_stage = args[0]
            return
        for argument in args:
            require_type(argument, (Stage, str, list, tuple), "stage")
        self.stages = tuple(_stage(one) for one in args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.auto_stage.name})"


class PipelinedExecution(_Staged):
    """Stages work at the same time, each on another micro-batch."""


class ShardedExecution(_Staged):
    """Stages work one after another."""


class Phase:
    """Stages that run at the same time, before those of the next phase.

    Args:
        *args: Stages; or names of blocks, which are one stage.
    """

    def __init__(self, *args: Stage | str) -> None:
        for argument in args:
            require_type(argument, (Stage, str), "Phase")
        stages = tuple(argument for argument in args if isinstance(argument, Stage))
        if stages and len(stages) != len(args):
            raise AssertionError("Phase takes stages or names of blocks, not both")
        self.stages = stages or (Stage(*args),)  # type: ignore[arg-type]

    def ipus(self, *ipus: int) -> "Phase":
        """Put each stage on an IPU.

        Raises:
            AssertionError: If there are more or fewer IPUs than stages.
        """
        if len(ipus) != len(self.stages):
            raise AssertionError(f"Phase.ipus got {len(ipus)} IPU(s) for {len(self.stages)} stage(s)")
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)
        return self


class _PhasedExecution(ExecutionStrategy):
    def __init__(self, *phases: Any) -> None:
        for phase in phases:
            require_type(phase, (Phase, str, list, tuple), "phase")
        self._phases = [_phase(one) for one in phases]
        for number, phase in enumerate(self._phases):
            for place, stage in enumerate(phase.stages):
                stage.ipu_id = self._ipu_of(number, place) if stage.ipu_id is None else stage.ipu_id
        self.separate_backward_phase = False

    @property
    def stages(self) -> tuple[Stage, ...]:  # type: ignore[override]
        """Stages of all phases."""
        return tuple(stage for phase in self._phases for stage in phase.stages)

    def phase(self, phase: int) -> Phase:
        """Return a phase by its number."""
        require_type(phase, int, "phase")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Any:
        """Store whether the backward pass has phases of its own, which changes no number."""
        require_type(use, bool, "useSeparateBackwardPhase")
        self.separate_backward_phase = use
        return self

    def _ipu_of(self, phase: int, place: int) -> int:
        return place

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._phases)} phases)"


class SerialPhasedExecution(_PhasedExecution):
    """Phases run one after another, on one group of IPUs."""

    liveness = Liveness.AlwaysLive

    def setTensorsLiveness(self, liveness: Liveness) -> "SerialPhasedExecution":
        """Store which tensors stay on the chip, which changes no number."""
        require_type(liveness, Liveness, "setTensorsLiveness")
        self.liveness = liveness
        return self


class ParallelPhasedExecution(_PhasedExecution):
    """Phases run one after another, in turns on two groups of IPUs: those with even and those with odd numbers."""

    sends_tensors_off_chip = False

    def sendTensorsOffChip(self, off_chip: bool = True) -> "ParallelPhasedExecution":
        """Store whether tensors go through memory beside the chip, which changes no number."""
        require_type(off_chip, bool, "sendTensorsOffChip")
        self.sends_tensors_off_chip = off_chip
        return self

    def _ipu_of(self, phase: int, place: int) -> int:
        return 2 * place + phase % 2


def _phase(described: Any) -> Phase:
    if isinstance(described, Phase):
        return described
    return Phase(described) if isinstance(described, str) else Phase(*described)
