"""The package does not depend on portico, and its README is correct."""

import ast
import re
import sys
from pathlib import Path

import pytest

import poptorch_emulator

FOLDER = Path(poptorch_emulator.__file__).parent
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_modules_import_only_torch_and_numpy(path):
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in imported}
    assert packages - set(sys.stdlib_module_names) <= {"numpy", "poptorch_emulator", "torch"}


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))
def test_example_of_the_readme_runs(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.endswith(" 2\n")


def test_files_named_in_the_readme_exist():
    names = re.findall(r"`(\w+\.py)`", README)
    assert len(names) > 5
    assert [name for name in names if not (FOLDER / name).exists()] == []
