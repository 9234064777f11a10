"""Where in the pipeline a model that is being traced has come to."""

from collections.abc import Iterator
from contextlib import contextmanager

from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.options.execution import Stage


class PipelinePosition:
    """The IPUs that a forward pass visits, in order.

    Args:
        stages: Stages that the user listed; they place blocks that name no IPU.
    """

    def __init__(self, stages: tuple[Stage, ...] = ()) -> None:
        self.visited: list[int] = []
        self._has_left = False
        # IPUs of the scoped blocks that are open, the innermost last.
        self._scopes: list[int] = []
        self._ipu_of_block = {
            name: number if stage.ipu_id is None else stage.ipu_id
            for number, stage in enumerate(stages)
            for name in stage.blocks
        }
        self._current: int | None = None

    def enter(self, user_id: str | None, ipu_id: int | None) -> None:
        """Begin a block."""
        if ipu_id is None:
            ipu_id = self._ipu_of_block.get(str(user_id), self._current or 0)
        self._current, self._has_left = ipu_id, False
        if not self.visited or self.visited[-1] != ipu_id:
            self.visited.append(ipu_id)

    def enter_scope(self, user_id: str | None, ipu_id: int | None) -> None:
        """Begin a scoped block, perhaps inside of another."""
        self.enter(user_id, ipu_id)
        assert self._current is not None
        self._scopes.append(self._current)

    def leave_scope(self) -> None:
        """End a scoped block: the one around it goes on; without one there is none until the next begins."""
        self._scopes.pop()
        if self._scopes:
            self.enter(None, self._scopes[-1])
        else:
            self._has_left = True

    def ipu(self) -> int:
        """Return the IPU that an operation here runs on; operations before the first block are on IPU 0.

        Raises:
            Error: If the operation comes after a scoped block.
        """
        if self._has_left:
            raise Error("No active Block, all the ops must belong to a Block")
        if self._current is None:
            self.enter(None, 0)
        assert self._current is not None
        return self._current

    @property
    def num_stages(self) -> int:
        """Pipeline stages of the forward pass: one more than there are changes of the IPU."""
        return max(len(self.visited), 1)

    @property
    def num_ipus(self) -> int:
        """IPUs of one replica."""
        return max(self.visited, default=0) + 1


_current: PipelinePosition | None = None


def current_position() -> PipelinePosition | None:
    """Return the position of the trace that is running, if one is."""
    return _current


@contextmanager
def followed(position: PipelinePosition) -> Iterator[None]:
    """Let blocks report to ``position``."""
    global _current
    enclosing, _current = _current, position
    try:
        yield
    finally:
        _current = enclosing
