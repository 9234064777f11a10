"""Every ``raise`` of portico has a proof in refusals.py that the input could not be used anyway.

What no check refuses is tested from the other side, by generated input, in test_unusual_input.py.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
import transformers
from errors import raises

import portico
from parity.refusals import CONTROL, ENTRIES, FAILS, Named, Says
from parity.test_unusual_input import silence

CHECKOUT = Path(__file__).parents[2]
FOUND = [found for found in raises() if found.error not in CONTROL]


def covers(entry, found):
    is_there = found.module == entry.module or (entry.module.endswith("/") and found.module.startswith(entry.module))
    is_error = not entry.error or entry.error == found.error
    return is_there and is_error and found.function.startswith(entry.function) and entry.part in found.text


def named(entry):
    return ":".join(filter(None, (entry.module, entry.function, entry.part, entry.error)))


@pytest.mark.parametrize("module", sorted({found.module for found in FOUND}))
def test_every_refusal_has_one_proof(module):
    unclear = {}
    for found in FOUND:
        if found.module == module:
            entries = [named(entry) for entry in ENTRIES if covers(entry, found)]
            if len(entries) != 1:
                unclear[f"{found.function}: {found.error}: {found.text[:70]}"] = entries
    assert unclear == {}, "give each a proof in tests/parity/refusals.py, or remove the check"


def test_every_proof_has_its_refusal():
    assert [named(entry) for entry in ENTRIES if not any(covers(entry, found) for found in FOUND)] == []


def attempted(library, entry, folder):
    folder.mkdir(parents=True)
    with silence():
        try:
            return entry.attempt(library, folder), None
        except Exception as error:
            return None, error


def pattern_of(text):
    """Return an expression for a message, in which names stand for values."""
    parts = re.split(r"<[^<>]*>|%s", text)
    return ".*".join(re.escape(part) for part in parts)


@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, id=named(entry), marks=pytest.mark.slow if entry.is_slow else ()) for entry in FAILS],
)
def test_the_same_input_fails_in_the_peer(entry, tmp_path):
    if entry.requires:
        pytest.importorskip(entry.requires)
    texts = [found.text for found in FOUND if covers(entry, found)]
    _, ours = attempted(portico, entry, tmp_path / "portico")
    assert ours is not None
    assert any(re.search(pattern_of(text), str(ours), re.DOTALL) for text in texts), ours
    result, theirs = attempted(importlib.import_module(entry.peer), entry, tmp_path / "peer")
    if entry.is_wrong is not None and theirs is None:
        assert entry.is_wrong(result)
    else:
        assert theirs is not None


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if isinstance(entry, Named)], ids=named)
def test_the_documentation_names_the_deviation(entry):
    page = (CHECKOUT / entry.page).read_text(encoding="utf-8")
    assert " ".join(entry.sentence.split()) in " ".join(page.split())


def source_of(module):
    """Return the source of a module, which is not imported: predecessors need older packages."""
    package, *names = module.split(".")
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"{package} is not installed")
    for folder in found.submodule_search_locations:
        path = Path(folder, *names)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file.read_text(encoding="utf-8")
    pytest.skip(f"{module} is not installed")


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if isinstance(entry, Says)], ids=named)
def test_the_peer_refuses_it_in_its_source(entry):
    assert entry.sentence in re.sub(r"\"\s+f?\"", "", source_of(entry.peer))


def test_transformers_has_no_input_of_ours():
    fields = {field.name for field in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}
    parameters = set(inspect.signature(transformers.Trainer.__init__).parameters)
    taken = {
        f"{named(entry)} ({name})"
        for entry in ENTRIES
        for name in getattr(entry, "names", ())
        if name in fields | parameters or hasattr(transformers, name) or hasattr(transformers.Trainer, name)
    }
    assert taken == set()
