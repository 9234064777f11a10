"""Where in the pipeline a model that is being traced has come to."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from torch import nn

from poptorch_emulator.errors import Error
from poptorch_emulator.execution import Stage


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


Layer = TypeVar("Layer", bound=nn.Module)


class BlockEntry:
    """Forward pre-hook of a module that a block begins at.

    Args:
        user_id: Name of the block.
        ipu_id: IPU of the block.
    """

    def __init__(self, user_id: str | None, ipu_id: int | None) -> None:
        self.user_id = user_id
        self.ipu_id = ipu_id

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Begin the block."""
        _enter(self.user_id, self.ipu_id)


def BeginBlock(layer_to_call: Layer, user_id: str | None = None, ipu_id: int | None = None) -> Layer:
    """Begin a block at a module; it goes on until another block begins.

    Args:
        layer_to_call: The module.
        user_id: Name of the block.
        ipu_id: IPU of the block.

    Returns:
        The same module.

    Raises:
        Error: If a block begins there already.
    """
    if not isinstance(layer_to_call, nn.Module):
        raise Error(
            f"BeginBlock takes a torch.nn.Module; a {type(layer_to_call).__name__} was given. Use "
            "poptorch.BlockFunction for functions."
        )
    if block_of(layer_to_call) is not None:
        raise Error(f"{type(layer_to_call).__name__} module has already been assigned to a block.")
    layer_to_call.register_forward_pre_hook(BlockEntry(user_id, ipu_id))
    return layer_to_call


def block_of(module: nn.Module) -> BlockEntry | None:
    """Return the block that begins at a module, if one does."""
    hooks = module._forward_pre_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, BlockEntry)), None)


def removeBlocks(module: nn.Module) -> None:
    """Take away every block that begins in ``module``."""
    for part in module.modules():
        for number, hook in list(part._forward_pre_hooks.items()):
            if isinstance(hook, BlockEntry):
                del part._forward_pre_hooks[number]


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function, such as a ``forward``, so that a block begins where it is called."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def entered(*args: Any, **kwargs: Any) -> Any:
            _enter(user_id, ipu_id)
            return function(*args, **kwargs)

        return entered

    return decorate


class Block(nn.Module):
    """A block as a context manager; outside of it the block around it goes on, or there is none.

    Args:
        user_id: Name of the block; numbered when there is none.
        ipu_id: IPU of the block.
    """

    _num_unnamed: ClassVar[int] = 0

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id

    @staticmethod
    def useAutoId() -> None:
        """Number unnamed blocks from 0 again."""
        Block._num_unnamed = 0

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begin a block here; it goes on until another begins."""
        _enter(user_id, ipu_id)

    def __enter__(self) -> "Block":
        if self._user_id is None:
            self._user_id = str(Block._num_unnamed)
            Block._num_unnamed += 1
        position = current_position()
        if position is not None:
            position.enter_scope(self._user_id, self._ipu_id)
        return self

    def __exit__(self, *exception: Any) -> None:
        position = current_position()
        if position is not None:
            position.leave_scope()


def _enter(user_id: str | None, ipu_id: int | None) -> None:
    position = current_position()
    if position is not None:
        position.enter(user_id, ipu_id)
