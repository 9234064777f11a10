"""Each name that `portico.compat.transformers` takes from transformers exists in the installed release."""

import ast
import io
import logging
import tomllib
import types
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import transformers.trainer_utils

from models import tiny_bert
from portico import Trainer, TrainingArguments
from portico.compat import releases
from portico.compat import transformers as hf_compat
from portico.compat.releases import SINCE, is_before
from portico.errors import MissingPackageError
from releases import since_transformers

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
# Nothing stands in for these; `split_layers` and `shard_operation` ask for the release.
NEWER = {
    "BatchRebalanceSampler": "5.17",
    "DtensorShardOperation": "5.14",
    "GreedyLR": "5.4",
    "ViTImageProcessorPil": "5.4",
    "apply_tensor_parallelism": "5.16",
}


@pytest.mark.pinned
def test_checked_version_is_installed():
    installed = version("transformers")
    assert installed.startswith(f"{hf_compat.CHECKED_VERSION}."), (
        f"transformers {installed} is installed, but src/portico/compat/transformers.py was checked against "
        f"{hf_compat.CHECKED_VERSION}: run the tests, look up the names that have moved, set `CHECKED_VERSION`."
    )


@pytest.mark.parametrize(("module", "name"), IMPORTED)
def test_imported_name_exists(module, name):
    if name in NEWER and is_before(NEWER[name]):
        pytest.skip(f"{name} is new in transformers {NEWER[name]}")
    assert hasattr(import_module(module), name)


@pytest.mark.parametrize("name", sorted(hf_compat._HOMES))
def test_name_is_found(name):
    is_missing = isinstance(getattr(hf_compat, name), hf_compat.MissingName)
    assert is_missing == (name in SINCE and is_before(SINCE[name]))


def test_lowest_version_is_the_bound():
    requirements = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"transformers>={hf_compat.LOWEST_VERSION},<6" in requirements["dependencies"]


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match=r"'portico\.compat\.transformers' has no attribute 'Trainr'"):
        _ = hf_compat.Trainr


def test_moved_name_is_found_where_it_is_imported(monkeypatch):
    monkeypatch.setitem(hf_compat._HOMES, "has_length", ("transformers.moved_away", "has_length"))
    assert hf_compat._look_up("has_length") is transformers.trainer_utils.has_length


@pytest.fixture
def missing(monkeypatch):
    """What stands for a name that is nowhere."""
    monkeypatch.setitem(hf_compat._HOMES, "find_worms", ("transformers.garden", "find_worms"))
    return hf_compat._look_up("find_worms")


@pytest.mark.parametrize(
    "use",
    [
        lambda missing: missing(1),
        lambda missing: missing.attribute,
        lambda missing: missing["key"],
        lambda missing: "key" in missing,
        lambda missing: list(missing),
        lambda missing: f"{missing}",
        lambda missing: Path("folder", missing),
        lambda missing: types.new_class("Own", (missing,))(),
    ],
)
def test_use_of_a_missing_name_says_which_releases_have_it(missing, use):
    with pytest.raises(
        MissingPackageError,
        match=r"portico 0\.\d+\.\d+ needs `find_worms` of `transformers\.garden`, which transformers [\d.]+ does not "
        r"have \(No module named 'transformers\.garden'\); install transformers 5\.2 to 5\.24, or a newer portico\.",
    ):
        use(missing)


def test_missing_name_may_be_named(missing):
    assert not isinstance(1, missing)
    assert not isinstance(1, (str, missing))
    assert int | missing
    assert missing | None
    assert not hasattr(missing, "__wrapped__")
    types.new_class("Own", (dict, missing))


def test_name_of_a_newer_release_says_its_release(monkeypatch):
    # A script's module may be another object, since transformers replaces it.
    monkeypatch.setattr(releases.transformers, "__version__", "5.3.0")
    monkeypatch.setattr(hf_compat.transformers, "__version__", "5.3.0")
    monkeypatch.setattr(hf_compat, "import_module", lambda module: object())
    with pytest.raises(
        MissingPackageError,
        match=r"needs `GreedyLR` of `transformers\.optimization`, which transformers 5\.3\.0 does not have; install "
        r"transformers 5\.4 to 5\.24\.$",
    ):
        hf_compat._look_up("GreedyLR")()


def test_imports_inside_functions_and_for_types_are_found():
    source = "if TYPE_CHECKING:\n    from transformers.a import B\ndef f():\n    from transformers import C\nimport d"
    assert imported_names(source) == {("transformers.a", "B"), ("transformers", "C")}


@since_transformers("5.10")
def test_what_portico_says_is_not_printed_as_of_transformers(monkeypatch, tmp_path):
    (handler,) = [one for one in logging.getLogger("transformers").handlers if type(one) is logging.StreamHandler]
    printed = io.StringIO()
    monkeypatch.setattr(handler, "stream", printed)
    transformers.utils.logging.warning_once.cache_clear()
    args = TrainingArguments(str(tmp_path), max_grad_norm=-1, fp16=True, use_cpu=True, report_to=[])
    Trainer(tiny_bert(), args)
    transformers.logging.get_logger("transformers.trainer").warning("of transformers or of a script")
    said = [line.split(maxsplit=2)[:2] for line in printed.getvalue().splitlines()]
    assert said == [["[portico]", "`fp16=True`"], ["[portico]", "`max_grad_norm=-1`"], ["[transformers]", "of"]]


def test_records_of_warning_once_name_the_module_that_warns():
    calls = [
        (f"{path.name}:{call.lineno}", call)
        for path in SOURCE.parent.parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "warning_once"
    ]
    assert calls
    assert [
        (name, call.lineno) for name, call in calls if "stacklevel" not in {one.arg for one in call.keywords}
    ] == []
