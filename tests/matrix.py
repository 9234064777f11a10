"""Run tests against the built wheel in fresh environments: every Python, the lowest and the newest allowed libraries.

    python tests/matrix.py                                                    # every row, the tests named in TESTS
    python tests/matrix.py --python 3.11 --versions lowest -- tests/parity    # one row, other tests

Needs uv (`pip install uv`); packages come from where uv is configured to find them. The lowest versions are those of
the dependencies that ``pyproject.toml`` names, the newest those that its bounds allow on the day of the run. The test
tools are those of ``constraints.txt`` in every row, so only what a user installs differs.
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

RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
# The extras whose tests run in every row; what they need is installed with the same resolution.
EXTRAS = ("images", "ort", "rouge")
# What the tests need besides, in the version of `constraints.txt`.
TOOLS = ("accelerate", "datasets", "hypothesis", "mypy", "nbmake", "pytest")
# A few minutes: private names, signatures, numbers, checkpoints, events, types, a reading comprehension run.
TESTS = (
    "tests/unit/test_public_names.py",
    "tests/unit/compat/test_transformers.py",
    "tests/unit/compat/test_lightning.py",
    "tests/unit/test_signatures.py",
    "tests/unit/mrc/test_trainer.py",
    "tests/parity/test_training.py",
    "tests/parity/test_events.py",
    "tests/parity/test_resume.py",
    "tests/end_to_end/test_user_scripts.py",
)
# Tests of what only the version of transformers in `constraints.txt` does; nothing of it is missing with an older one.
PINNED_ONLY = (
    "tests/unit/compat/test_transformers.py::test_checked_version_is_installed",
    # Signatures and documents are recorded with the arguments of that version.
    "tests/unit/test_signatures.py",
    "tests/unit/test_training_arguments_page.py",
    "tests/frozen/test_frozen.py::test_public_names_and_signatures_are_as_recorded",
)
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
        _run(uv, "build", "--quiet", "--wheel", "--out-dir", folder, str(ROOT))
        (wheel,) = Path(folder).glob("*.whl")
        rows = []
        for python in wanted.python:
            for resolution in wanted.versions:
                print(f"== Python {python}, {resolution} ==", flush=True)
                environment = Path(folder, "environment")
                chosen = [wanted.tests] if wanted.tests else [TESTS, TYPES]
                rows.append(_row(uv, environment, wheel, python, resolution, wanted.torch, chosen))
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
    chosen: Sequence[Sequence[str]],
) -> Row:
    interpreter = environment / "bin" / "python"
    try:
        _run(uv, "venv", "--quiet", "--no-python-downloads", "--python", python, str(environment))
        install = (uv, "pip", "install", "--quiet", "--python", str(interpreter))
        requirements = [*requirements_of_users(), *([f"torch=={torch}"] if torch else []), *pinned_tools()]
        _run(*install, "--resolution", RESOLUTIONS[resolution], *requirements)
        _run(*install, "--no-deps", str(wheel))
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split())
        return Row(python, resolution, "", f"not installable: {reason[:300]}", False)
    listed = json.loads(_run(uv, "pip", "list", "--quiet", "--format", "json", "--python", str(interpreter)))
    installed = {one["name"]: one["version"] for one in listed}
    versions = ", ".join(f"{name} {installed[name]}" for name in _SHOWN)
    without = [f"--deselect={test}" for test in PINNED_ONLY if resolution == "lowest"]
    runs = [_tested(interpreter, [*tests, *without]) for tests in chosen]
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


def pinned_tools() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition("#")[0].strip() for line in lines]
    return [pin for pin in pins if pin.partition("==")[0] in TOOLS]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
