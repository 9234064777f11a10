"""Run tests against the built wheel in fresh environments: every Python, old and new releases of the libraries.

    python tests/matrix.py                                                    # every row, the tests named in TESTS
    python tests/matrix.py --python 3.11 --versions lowest -- tests/unit/loop # one row, other tests

Needs uv (`pip install uv`); packages come from where uv is configured to find them. The lowest versions are those of
the dependencies that ``pyproject.toml`` names, the newest those that its bounds allow on the day of the run, and the
middle ones the newest but for transformers. The test tools are those of ``constraints.txt`` in every row, so only what
a user installs differs. Tests with the mark ``pinned`` run where transformers is the pinned one.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

MIDDLE = "5.10"


class Resolution(NamedTuple):
    """How uv chooses versions, and what else it must meet."""

    strategy: str
    requirements: tuple[str, ...] = ()


RESOLUTIONS = {
    "lowest": Resolution("lowest-direct"),
    "middle": Resolution("highest", (f"transformers=={MIDDLE}.*",)),
    "newest": Resolution("highest"),
}
# The extras whose tests run in every row; what they need is installed with the same resolution.
EXTRAS = ("allennlp", "demo", "images", "optuna", "ort", "rouge")
# What the tests need besides, in the version of `constraints.txt`.
TOOLS = (
    "accelerate",
    "datasets",
    "httpx2",
    "hypothesis",
    "ipykernel",
    "matplotlib",
    "mypy",
    "nbmake",
    "pytest",
    "pytest-xdist",
)
TESTS = (
    *("-n", "2", "--dist", "loadfile", "tests/unit", "tests/config", "tests/end_to_end/test_user_scripts.py"),
    # Not the checkout, but the wheel is tested here.
    *("--deselect", "tests/config/test_conf.py::test_checkout_is_what_is_tested"),
)
# In rows with the pinned transformers: numbers, events and checkpoints next to its trainer.
PARITY = ("tests/parity/test_training.py", "tests/parity/test_events.py", "tests/parity/test_resume.py")
_DEFAULT_MARKS = "not slow and not clients and not gpu"
# Takes a minute, so the default run leaves it out.
TYPES = ("-m", "slow", "tests/end_to_end/test_typed_script.py")
_SHOWN = ("torch", "lightning", "transformers", "torchmetrics", "hydra-core")


class Row(NamedTuple):
    """The result of one environment; no versions if it could not be installed."""

    python: str
    resolution: str
    versions: str
    outcome: str
    is_green: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=["3.11", "3.12", "3.13"], help="versions, or paths, for uv")
    parser.add_argument("--versions", nargs="+", default=list(RESOLUTIONS), choices=RESOLUTIONS)
    parser.add_argument("--torch", metavar="VERSION", help="the only torch to use, where no other build is available")
    parser.add_argument("tests", nargs="*", help="arguments of pytest, after `--`")
    wanted = parser.parse_args()
    uv = shutil.which("uv")
    if uv is None:
        parser.error("uv is not installed; install it with `pip install uv`.")
    with tempfile.TemporaryDirectory(prefix="portico-matrix-") as folder:
        # The tests of hostile folders read the environment as another user.
        Path(folder).chmod(0o755)
        _run(uv, "build", "--quiet", "--wheel", "--out-dir", folder, str(ROOT))
        (wheel,) = Path(folder).glob("*.whl")
        rows = []
        for python in wanted.python:
            for resolution in wanted.versions:
                print(f"== Python {python}, {resolution} ==", flush=True)
                environment = Path(folder, "environment")
                rows.append(_row(uv, environment, wheel, python, resolution, wanted.torch, wanted.tests))
                shutil.rmtree(environment, ignore_errors=True)
    print("\n| Python | versions | installed | tests |\n| --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row.python} | {row.resolution} | {row.versions} | {row.outcome} |")
    sys.exit(not all(row.is_green for row in rows))


def _row(
    uv: str,
    environment: Path,
    wheel: Path,
    python: str,
    resolution: str,
    torch: str | None,
    tests: Sequence[str],
) -> Row:
    interpreter = environment / "bin" / "python"
    try:
        _run(uv, "venv", "--quiet", "--no-python-downloads", "--python", python, str(environment))
        install = (uv, "pip", "install", "--quiet", "--python", str(interpreter))
        strategy, further = RESOLUTIONS[resolution]
        requirements = [*requirements_of_users(), *([f"torch=={torch}"] if torch else []), *pinned_tools(), *further]
        _run(*install, "--resolution", strategy, *requirements)
        _run(*install, "--no-deps", str(wheel))
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split())
        return Row(python, resolution, "", f"not installable: {reason[:300]}", False)
    listed = json.loads(_run(uv, "pip", "list", "--quiet", "--format", "json", "--python", str(interpreter)))
    installed = {one["name"]: one["version"] for one in listed}
    versions = ", ".join(f"{name} {installed[name]}" for name in _SHOWN)
    is_pinned = f"transformers=={installed['transformers']}" in pins()
    marks = ("-m", _DEFAULT_MARKS if is_pinned else f"{_DEFAULT_MARKS} and not pinned")
    chosen = [[*marks, *tests]] if tests else [[*marks, *TESTS, *(PARITY if is_pinned else ())], TYPES]
    runs = [_tested(interpreter, one) for one in chosen]
    outcome = "; ".join(run.stdout.splitlines()[-1] for run in runs)
    return Row(python, resolution, versions, outcome, not any(run.returncode for run in runs))


def _tested(interpreter: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # The wheel is what is tested, not the checkout.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(interpreter), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    run = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)
    print(run.stdout, flush=True)
    return run


def requirements_of_users() -> list[str]:
    """Return the requirements of ``pyproject.toml`` and of the tested extras, each a direct one for the resolver."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"] + [one for extra in EXTRAS for one in project["optional-dependencies"][extra]]


def pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line.partition("#")[0].strip() for line in lines]


def pinned_tools() -> list[str]:
    return [pin for pin in pins() if pin.partition("==")[0] in TOOLS]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
