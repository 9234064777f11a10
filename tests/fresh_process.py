"""Run Python code in processes that have not imported portico."""

import atexit
import gc
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

# What takes seconds to import. Where nothing depends on when it is imported, processes are forks of a server that has.
LARGE = ("lightning.pytorch", "torchmetrics", "transformers.trainer", "datasets")
_SERVER = get_context("forkserver")
# One list: all contexts share one server, which begins with the first process.
_SERVER.set_forkserver_preload(list(LARGE))

# A fork inherits the imports of its parent, so large packages are imported once for all pieces of code.
_FORKS = """
import importlib, os, sys, traceback

packages, *codes = sys.argv[1:]
for name in packages.split():
    importlib.import_module(name)
assert not any(name.partition(".")[0] == "portico" for name in sys.modules)
for code in codes:
    child = os.fork()
    if not child:
        try:
            exec(code, globals())  # as in a script: the names are those of a module
        except BaseException:
            traceback.print_exc()
            print("in a fresh process:", code, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""


def assert_runs_anew(*codes: str, after: Sequence[str] = ()) -> None:
    """Run each piece of code in a new process that has imported the packages ``after`` and no others.

    After ``LARGE`` the packages have been imported already.
    """
    if after is LARGE:
        for code in codes:
            ended = python("-c", code, folder=Path.cwd())
            assert ended.returncode == 0, f"{ended.stderr}\nin a fresh process: {code}"
        return
    command = [sys.executable, "-W", "ignore", "-c", _FORKS, " ".join(after), *codes]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ended.returncode == 0, ended.stderr


def portico(*command: object, folder: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command ``portico`` in a folder, with a wide terminal and more environment variables."""
    return python("-m", "portico", *command, folder=folder, COLUMNS="200", **variables)


def python(*command: object, folder: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run what ``python COMMAND`` would run, in a process that has imported ``LARGE``.

    Args:
        command: ``-m`` and a module, ``-c`` and code, or a script; then their arguments.
        folder: Working folder.
        **variables: More environment variables.
    """
    with TemporaryDirectory() as outputs:
        files = [Path(outputs, name) for name in ("stdout", "stderr")]
        words = [*map(str, command)]
        process = _SERVER.Process(target=_run, args=(words, str(folder), environment(**variables), files))
        process.start()
        process.join(timeout=900)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{words} has not ended")
        return subprocess.CompletedProcess(words, process.exitcode, *map(Path.read_text, files))


def _run(command: list[str], folder: str, variables: dict[str, str], files: list[Path]) -> None:
    """Do in this process what Python would do in a new one."""
    for descriptor, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    assert "portico" not in sys.modules
    gc.freeze()  # transformers collects garbage in full for each training
    warnings.simplefilter("ignore")
    kind, *words = command if command[0] in ("-m", "-c") else ["", *command]
    sys.argv = [kind or words[0], *words[1:]]
    first = str(Path(words[0]).parent) if not kind else folder if kind == "-m" else ""
    sys.path[:] = [first, *variables["PYTHONPATH"].split(os.pathsep)]
    try:
        if kind == "-m":
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(words[0], vars(main))
        else:
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that finds the modules that this one finds, those of the tests included."""
    # Without buffers, `print` writes its arguments one by one, and the lines of several processes mix.
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": ""}
    return {**os.environ, **found, **changes}
