"""Type checkers read portico's annotations where it is installed, as `py.typed` promises."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("typed_script.py")


@pytest.mark.slow
def test_strict_mypy_accepts_a_users_script(tmp_path):
    copy = tmp_path / "script.py"
    copy.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    # Away from the checkout and its settings: only the installed package is found.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--warn-unused-ignores", copy.name]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert checked.stdout == "Success: no issues found in 1 source file\n", checked.stdout + checked.stderr
