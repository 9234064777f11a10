"""What a call does to the machine, as Python's audit events tell: files written, connections, processes.

Libraries in C and Rust write without an event; what they may reach is a matter of the paths they get, so tests also
compare the files elsewhere before and after.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events with a path, and where in their arguments it and the descriptor of its folder are.
_CHANGES = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
}
_PROCESSES = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.spawn")
_CONNECTIONS = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto")

_watchers: list[Callable[[str, tuple[Any, ...]], None]] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    for watch in _watchers:
        watch(event, args)


@contextmanager
def recorded_effects() -> Iterator[list[tuple[str, str]]]:
    """Yield a list to which the effects of the block are added: a kind and a path, an address or a command."""
    if not hasattr(sys, "_portico_audited"):
        sys._portico_audited = True  # type: ignore[attr-defined]  # a hook cannot be removed
        sys.addaudithook(_hook)
    found: list[tuple[str, str]] = []

    def watch(event: str, args: tuple[Any, ...]) -> None:
        found.extend(_effects_of(event, args))

    _watchers.append(watch)
    try:
        yield found
    finally:
        _watchers.remove(watch)


def stream_effects(descriptor: int) -> None:
    """Write the effects of this process, and of those that it forks, to an open file as lines of JSON."""
    sys.addaudithook(_hook)
    _watchers.append(
        lambda event, args: [os.write(descriptor, f"{json.dumps(one)}\n".encode()) for one in _effects_of(event, args)]
    )


@contextmanager
def unrecorded() -> Iterator[None]:
    """Record no effects of the block, nor of a process that is forked in it."""
    watchers = _watchers[:]
    _watchers.clear()
    try:
        yield
    finally:
        _watchers.extend(watchers)


def _effects_of(event: str, args: tuple[Any, ...]) -> list[tuple[str, str]]:
    if event == "open":
        path, mode, flags = args
        if not isinstance(path, int) and (flags & _WRITING or set(mode or "") & set("wax+")):
            full = _full(path, None)
            return [("write", full if flags & os.O_NOFOLLOW else os.path.realpath(full))]
    elif event in _CHANGES:
        return [(event, _full(args[path], args[fd] if fd is not None else None)) for path, fd in _CHANGES[event]]
    elif event in _PROCESSES:
        return [("process", str(args[:2]))]
    elif event in _CONNECTIONS:
        return [("connection", str(args[1:]))]
    return []


def outside(effects: Sequence[tuple[str, str]], allowed: Sequence[str]) -> list[tuple[str, str]]:
    """Return the effects that none of the regular expressions admits, each of a kind and a path in one string."""
    admitted = [re.compile(one) for one in (*allowed, r"write /dev/null", r".* \S*/__pycache__(/.*)?")]
    return [one for one in effects if not any(each.fullmatch(" ".join(one)) for each in admitted)]


def _full(path: Any, folder: int | None) -> str:
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115
    name = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0 and not name.startswith("/"):
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)  # noqa: PTH115, PTH118
    parent, last = os.path.split(os.path.abspath(name))  # noqa: PTH100
    return os.path.join(os.path.realpath(parent), last)  # noqa: PTH118  # a link at its end is not followed
