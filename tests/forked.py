"""Run a function in several processes that are connected as ``torchrun`` connects them."""

import gc
import multiprocessing
import os
import socket
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch.multiprocessing

from fresh_process import LARGE


def run_in_processes(number: int, function: Callable[..., None], *args: Any) -> None:
    """Run ``function(*args)`` in ``number`` processes; an error in one of them is raised here.

    They are forked from a process that has imported the large packages, which takes longer than most runs, and done
    nothing else: threads of this one, for example of a tokenizer, could hold locks that a fork would wait for.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.set_forkserver_preload(list(LARGE))
    settings = (port, dict(os.environ), warnings.filters)
    torch.multiprocessing.start_processes(
        _run, args=(number, settings, function, args), nprocs=number, start_method="forkserver"
    )


def _run(
    rank: int,
    number: int,
    settings: tuple[int, dict[str, str], Sequence[Any]],
    function: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    port, environment, filters = settings
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
    machine = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    started = {**places, **machine, "TORCHELASTIC_RUN_ID": "tests", "TORCHELASTIC_USE_AGENT_STORE": False}
    os.environ.update({**environment, **{name: str(value) for name, value in started.items()}})
    warnings.filters[:] = filters  # type: ignore[index]  # a list, declared as a sequence
    torch.set_num_threads(1)
    gc.freeze()  # transformers collects garbage in full for each training
    function(*args)
