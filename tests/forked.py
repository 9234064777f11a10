"""Run a function in several processes that are connected as ``torchrun`` connects them, forked from this one."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch.multiprocessing


def run_in_processes(number: int, function: Callable[..., None], *args: Any) -> None:
    """Run ``function(*args)`` in ``number`` processes; an error in one of them is raised here.

    They share this process's imports, which take longer than most runs.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(
        _run, args=(number, port, function, args), nprocs=number, start_method="fork"
    )


def _run(rank: int, number: int, port: int, function: Callable[..., None], args: tuple[Any, ...]) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
    machine = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    settings = {**places, **machine, "TORCHELASTIC_RUN_ID": "tests", "TORCHELASTIC_USE_AGENT_STORE": False}
    os.environ.update({name: str(value) for name, value in settings.items()})
    torch.set_num_threads(1)
    function(*args)
