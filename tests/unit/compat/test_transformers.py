"""Each name that `portico.compat.transformers` takes from transformers exists in the installed release."""

import ast
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from portico.compat import transformers as hf_compat

SOURCE = Path(hf_compat.__file__)


def imported_names(source):
    """Return the pairs of module and name that ``source`` imports from transformers, those for types included."""
    return {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "transformers"
        for alias in node.names
    }


IMPORTED = sorted(imported_names(SOURCE.read_text(encoding="utf-8")))
LAZY = sorted((module, name) for name, module in hf_compat._LAZY.items())


def test_checked_version_is_installed():
    installed = version("transformers")
    assert installed.startswith(f"{hf_compat.CHECKED_VERSION}."), (
        f"transformers {installed} is installed, but src/portico/compat/transformers.py was checked against "
        f"{hf_compat.CHECKED_VERSION}: run the tests, look up the names that have moved, set `CHECKED_VERSION`."
    )


@pytest.mark.parametrize(("module", "name"), IMPORTED)
def test_imported_name_exists(module, name):
    assert hasattr(import_module(module), name)


@pytest.mark.parametrize(("module", "name"), LAZY)
def test_lazy_name_exists(module, name):
    assert getattr(hf_compat, name) is getattr(import_module(module), name)


def test_lazy_names_are_declared_for_type_checkers():
    assert set(LAZY) <= set(IMPORTED)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match=r"'portico\.compat\.transformers' has no attribute 'Trainr'"):
        _ = hf_compat.Trainr


def test_imports_inside_functions_and_for_types_are_found():
    source = "if TYPE_CHECKING:\n    from transformers.a import B\ndef f():\n    from transformers import C\nimport d"
    assert imported_names(source) == {("transformers.a", "B"), ("transformers", "C")}
