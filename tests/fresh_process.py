"""Run Python code in processes that have not imported portico."""

import atexit
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

# Commands are forks of a server that has imported the large packages: they spend their time on portico alone.
_SERVER = get_context("forkserver")
_SERVER.set_forkserver_preload(["lightning.pytorch", "torchmetrics", "transformers.trainer"])

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
    """Run each piece of code in a new process that has imported the packages ``after`` and no others."""
    command = [sys.executable, "-W", "ignore", "-c", _FORKS, " ".join(after), *codes]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ended.returncode == 0, ended.stderr


def portico(*command: object, folder: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command ``portico`` in a folder, with a wide terminal and more environment variables."""
    with TemporaryDirectory() as outputs:
        files = [Path(outputs, name) for name in ("stdout", "stderr")]
        arguments = ["portico", *map(str, command)]
        process = _SERVER.Process(
            target=_run_portico, args=(arguments, folder, environment(COLUMNS="200", **variables), files)
        )
        process.start()
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(arguments, process.exitcode, *map(Path.read_text, files))


def _run_portico(command: list[str], folder: object, variables: dict[str, str], files: list[Path]) -> None:
    """Do in this process what ``python -m portico`` would do in a new one."""
    for descriptor, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(str(folder))
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = command
    sys.path.insert(0, str(folder))
    warnings.simplefilter("ignore")
    try:
        runpy.run_module("portico", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that finds the modules that this one finds, those of the tests included."""
    # Without buffers, `print` writes its arguments one by one, and the lines of several processes mix.
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": ""}
    return {**os.environ, **found, **changes}
