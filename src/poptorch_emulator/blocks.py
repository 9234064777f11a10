"""Blocks: which IPU the operations of a model run on, from one marked module to the next."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from poptorch_emulator.errors import Error
from poptorch_emulator.tracing import current_trace

Layer = TypeVar("Layer", bound=nn.Module)


class BlockEntry:
    """Forward pre-hook of the module at which a block begins."""

    def __init__(self, user_id: str | None, ipu_id: int | None) -> None:
        self.user_id = user_id
        self.ipu_id = ipu_id

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        Block.start(self.user_id, self.ipu_id)


def BeginBlock(layer_to_call: Layer, user_id: str | None = None, ipu_id: int | None = None) -> Layer:
    """Begin a block at a module, and return the module; the block lasts until another begins.

    Args:
        layer_to_call: The module.
        user_id: Name of the block, by which the execution strategy places it.
        ipu_id: IPU of the block.

    Raises:
        Error: If a block already begins there.
    """
    if not isinstance(layer_to_call, nn.Module):
        raise Error(
            f"BeginBlock takes a torch.nn.Module; a {type(layer_to_call).__name__} was given. Use "
            "poptorch.BlockFunction for functions."
        )
    if any(isinstance(hook, BlockEntry) for hook in layer_to_call._forward_pre_hooks.values()):
        raise Error(f"{type(layer_to_call).__name__} module has already been assigned to a block.")
    layer_to_call.register_forward_pre_hook(BlockEntry(user_id, ipu_id))
    return layer_to_call


def removeBlocks(module: nn.Module) -> None:
    """Remove every block that begins in ``module``."""
    for part in module.modules():
        for number, hook in list(part._forward_pre_hooks.items()):
            if isinstance(hook, BlockEntry):
                del part._forward_pre_hooks[number]


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function, such as a ``forward``, so that a block begins when it is called."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            Block.start(user_id, ipu_id)
            return function(*args, **kwargs)

        return wrapper

    return decorate


class Block(nn.Module):
    """A block as a context manager; after it the enclosing block continues, if there is one.

    Args:
        user_id: Name of the block; a number by default.
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
        """Begin a block here; it lasts until another begins."""
        trace = current_trace()
        if trace is not None:
            trace.position.enter(user_id, ipu_id)

    def __enter__(self) -> Self:
        if self._user_id is None:
            self._user_id = str(Block._num_unnamed)
            Block._num_unnamed += 1
        trace = current_trace()
        if trace is not None:
            trace.position.enter_scope(self._user_id, self._ipu_id)
        return self

    def __exit__(self, *exception: Any) -> None:
        trace = current_trace()
        if trace is not None:
            trace.position.leave_scope()
