"""The processes of a run: started, brought together, ended together."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from portico.lightning_internals import makes_workers, runs_script_again
from portico.quiet import quiet_lightning

# What this process started; the launchers that know it are given up with their trainers.
_children: list[subprocess.Popen[bytes]] = []
_is_ending_together = False


def connect(strategy: Any) -> None:
    """Bring the processes of ``strategy`` together, unless they are; start them where that is left to this one.

    A strategy that runs the script once more for each process (``"ddp"``) does so at the first thing they do together;
    ``torchrun`` and clusters have started them all.
    """
    if getattr(strategy, "world_size", 1) == 1 or makes_workers(strategy) or torch.distributed.is_initialized():
        return
    with quiet_lightning():
        if runs_script_again(strategy):
            strategy.launcher.launch(strategy.setup_environment)
            _children.extend(strategy.launcher.procs)
        else:
            strategy.setup_environment()


def connect_early(strategy: Any) -> None:
    """Bring the processes together before there is a trainer, where all of them run already."""
    if not isinstance(getattr(strategy, "cluster_environment", None), LightningEnvironment | None):
        connect(strategy)


def all_gather(strategy: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Stack the tensors that the processes of ``strategy`` have, all of one shape, without gradients."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        stacked: torch.Tensor = strategy.all_gather(tensor)
        return stacked
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(strategy.world_size)]
    torch.distributed.all_gather(parts, tensor.detach().contiguous())
    return torch.stack(parts)


def disconnect() -> None:
    """Part from the other processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def ending_together() -> Iterator[None]:
    """End the processes that this one started when the block fails: they would wait for it for ever.

    Of nested blocks the outermost does: what fails inside it in all processes alike may be survived there.
    """
    global _is_ending_together
    if _is_ending_together:
        yield
        return
    _is_ending_together = True
    try:
        yield
    except BaseException:
        end_children()
        raise
    finally:
        _is_ending_together = False


def end_children() -> None:
    """Kill the processes that this one started; a politer signal does not reach one that waits for another."""
    while _children:
        _children.pop().kill()


@contextmanager
def first_process_first(strategy: Any, *, is_first: bool) -> Iterator[None]:
    """Let one process do the block before the others, where they are connected.

    Processes that are not connected run one after another anyway: the first starts the others when it has come far
    enough to need them.
    """
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    if together and not is_first:
        strategy.barrier("first_process_first")
    try:
        yield
    finally:
        if together and is_first:
            strategy.barrier("first_process_first")
