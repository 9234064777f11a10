"""Run Python code in processes that have not imported portico."""

import os
import subprocess
import sys
from collections.abc import Sequence

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
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "portico", *map(str, command)],
        cwd=str(folder),
        env=environment(COLUMNS="200", **variables),
        capture_output=True,
        text=True,
        check=False,
    )


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that finds the modules that this one finds, those of the tests included."""
    # Without buffers, `print` writes its arguments one by one, and the lines of several processes mix.
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": ""}
    return {**os.environ, **found, **changes}
