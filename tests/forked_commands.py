"""Commands that start Python, in forks of a process that has imported what is large, with their effects recorded.

What a command starts is forked as well, in place of a new Python, which would import for ten seconds and be out of
reach of the audit hook.
"""

import atexit
import ctypes
import json
import os
import re
import runpy
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from effects import stream_effects, unrecorded
from fresh_process import _SERVER, environment

NOBODY = 65534
_DAC_READ_SEARCH = 1 << 2
_SITE = "sitecustomize.py"


@dataclass(frozen=True)
class Ended:
    """How a command has ended: its exit code, what it printed, and its effects as kinds and paths."""

    code: int
    printed: str
    effects: Sequence[tuple[str, str]]


def run_forked(
    words: Sequence[object], folder: Path, *, owned: Path | None = None, seconds: int = 120, **variables: str
) -> Ended:
    """Run ``portico WORDS`` in a folder.

    Args:
        words: The command and its arguments.
        folder: The working folder.
        owned: A folder that an ordinary user owns, with whose rights the command runs; None for those of the tests.
        seconds: After these the command, which waits for a pipe, is killed.
        **variables: More environment variables.
    """
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place, name) for name in ("printed", "effects")]
        settings = environment(OMP_NUM_THREADS="1", COLUMNS="200", **variables)
        process = _SERVER.Process(
            target=_run, args=([*map(str, words)], str(folder), settings, files, owned and str(owned))
        )
        process.start()
        process.join(timeout=seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        printed, effects = (file.read_text(errors="replace") if file.exists() else "" for file in files)
        return Ended(process.exitcode, printed, [(kind, path) for kind, path in map(json.loads, effects.splitlines())])


def _run(
    words: list[str], folder: str, variables: Mapping[str, str], files: Sequence[Path], owned: str | None
) -> None:
    output, effects = (os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for file in files)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    _prepare(variables)
    from importlib import import_module

    for name in ("portico.__main__", f"portico.commands.{words[0]}", *_LATE.get(words[0], ())):
        import_module(name)
    if owned is not None and os.geteuid() == 0:
        _become_ordinary(Path(owned))
    subprocess.Popen = ForkedPython  # type: ignore[misc,assignment]
    ForkedPython.kept = effects
    sys.argv = ["portico", *words]
    sys.path.insert(0, str(Path(sys.executable).parent))  # as for the installed command
    tempfile.gettempdir()  # which writes to the folder for a trial
    stream_effects(effects)
    from portico.__main__ import main

    try:
        main(words)
    finally:
        with unrecorded():
            sys.stdout.flush()


# What the commands import while they run, and before the script imports a trainer.
_LATE = {
    "run": ("runpy",),
    "verify": ("portico.inspection.verification", "portico.inspection.recorder"),
    "preflight": ("portico.inspection.preflight",),
}


def _prepare(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    sys.path[:] = variables["PYTHONPATH"].split(os.pathsep)


def _become_ordinary(owned: Path) -> None:
    """Take the rights of an ordinary user who owns a folder and can read all files, since Python may be at root's."""
    for path in (owned, *owned.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", 0x20080522, 0)
    sets = ctypes.create_string_buffer(24)
    assert libc.capget(header, sets) == 0
    effective, permitted, inheritable, *upper = struct.unpack("6I", sets.raw)
    assert not effective
    assert libc.capset(header, struct.pack("6I", _DAC_READ_SEARCH, permitted, inheritable, *upper)) == 0


class ForkedPython:
    """Stands in for ``subprocess.Popen`` where Python is started: a fork that does what a new Python would do."""

    kept = -1
    """The descriptor to which effects are written."""
    __class_getitem__ = classmethod(lambda cls, _: cls)

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
        preexec_fn: Any = None,
        start_new_session: bool = False,
    ) -> None:
        assert command[0] == sys.executable
        sys.audit("subprocess.Popen", command[0], command, None, env)
        self.args = command
        self.returncode: int | None = None
        sys.stdout.flush()
        with unrecorded():
            self.pid = os.fork()
            if not self.pid:
                is_sheltered = preexec_fn is not None
                code = 255
                try:
                    self._connect((stdin, stdout, stderr), {*pass_fds, self.kept})
                    if start_new_session:
                        os.setsid()
                    if is_sheltered:
                        preexec_fn()
                    code = _do_what_python_would(command[1:], env or dict(os.environ), self.kept * (not is_sheltered))
                finally:
                    os._exit(code)

    @staticmethod
    def _connect(streams: Sequence[Any], kept: set[int]) -> None:
        for number, stream in enumerate(streams):
            if stream == subprocess.DEVNULL:
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            elif stream == subprocess.STDOUT:
                os.dup2(1, number)
            elif stream is not None:
                os.dup2(stream if isinstance(stream, int) else stream.fileno(), number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # multiprocessing has replaced it
        for path in list(Path("/proc/self/fd").iterdir()):
            if int(path.name) > 2 and int(path.name) not in kept:
                with suppress(OSError):  # of the list itself
                    os.close(int(path.name))

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _do_what_python_would(words: Sequence[str], variables: Mapping[str, str], effects: int) -> int:
    """Run a module, code or a script, and return the exit code; record effects if there is a descriptor for them."""
    atexit._clear()
    _prepare({"PYTHONPATH": "", **variables})
    words = [word for word in words if not re.fullmatch(r"-[PIS]", word)]
    kind, *rest = words if words[0] in ("-m", "-c") else ["", *words]
    sys.argv = rest[:]
    if effects:
        stream_effects(effects)
    try:
        try:
            site = Path(sys.path[0], _SITE)
            if site.is_file():
                runpy.run_path(str(site), run_name="sitecustomize")
            if kind == "-m":
                runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
            elif kind == "-c":
                main = sys.modules["__main__"] = ModuleType("__main__")
                exec(rest[0], vars(main))
            else:
                sys.path.insert(0, str(Path(rest[0]).resolve().parent))
                runpy.run_path(rest[0], run_name="__main__")
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0
