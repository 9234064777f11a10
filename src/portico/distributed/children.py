"""Processes that end with the process that started them, also if it is killed and cannot end them."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import psutil

_VARIABLE = "PORTICO_PARENT"
_BETWEEN_LOOKS = 0.5  # seconds


def build_child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child of this process that calls :func:`end_with_parent`."""
    return {**environment, _VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """Watch the process that asked for it, and kill this one with its own children when that has ended.

    It is the parent, or started a launcher that started this process, and may be killed, or run out of memory.
    `PR_SET_PDEATHSIG` of Linux goes by the thread that started the process, and the threads of a launcher end before
    it does.
    """
    starter = os.environ.get(_VARIABLE, "")
    if starter.isdigit():
        threading.Thread(target=_watch, args=(int(starter),), daemon=True, name="portico-parent").start()


def _watch(starter: int) -> None:
    with suppress(psutil.Error):  # it has ended
        process = psutil.Process(starter)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_BETWEEN_LOOKS)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    os.kill(os.getpid(), signal.SIGKILL)
