"""The choice between `poptorch` and its emulator."""

import pytest

import poptorch_emulator as poptorch
from portico.ipu import backend


def test_emulator_stands_in_where_poptorch_is_not_installed():
    assert backend.poptorch() is poptorch
    assert backend.Options is poptorch.Options


def test_poptorch_that_fails_to_import_gives_one_clear_message(tmp_path, monkeypatch):
    (tmp_path / "poptorch.py").write_text("raise ImportError('needs torch 2.0.1')")
    monkeypatch.syspath_prepend(tmp_path)
    backend.poptorch.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"cannot be imported with torch .*: needs torch 2.0.1\. It is built"):
            backend.poptorch()
    finally:
        backend.poptorch.cache_clear()
