import sys

import pytest

from portico import InputError
from portico.errors import MissingPackageError
from portico.imports import LazyClass, lazy_exports
from portico.trust.names import import_target


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A module that needs onnx, as those of ONNX Runtime do, where it is not installed."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "room_of_onnx.py").write_text("import onnx\n")
    (tmp_path / "stub.pyi").write_text("from room_of_onnx import Thing as Thing\n")
    return tmp_path


@pytest.mark.parametrize("way", ["configuration", "attribute", "strategy"])
def test_a_missing_package_is_named_with_its_extra(room, way):
    get, _, _ = lazy_exports("package", str(room / "stub.py"))
    ways = {
        "configuration": lambda: import_target("trainer._target_", "room_of_onnx.Thing"),
        "attribute": lambda: get("Thing"),
        "strategy": LazyClass("room_of_onnx:Thing"),
    }
    match = r"needs onnx, which is not installed; install it with `pip install 'portico\[ort\]'`\.$"
    with pytest.raises(MissingPackageError, match=match):
        ways[way]()


def test_other_missing_modules_keep_their_errors(room):
    (room / "room_of_onnx.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
        LazyClass("room_of_onnx:Thing")()
    with pytest.raises(InputError, match=r"cannot be imported \(No module named 'no_such_package'\)"):
        import_target("trainer._target_", "room_of_onnx.Thing")


@pytest.mark.parametrize("path", [".garden.Model", "..Model", "./garden.Model", "garden..Model", "garden.Model."])
def test_relative_names_are_refused(path):
    reason = r"cannot be imported \(invalid format: .*\); set it to"
    with pytest.raises(InputError, match=reason):
        import_target("model._target_", path)
