"""Where portico gets `poptorch` from."""

import pytest

import poptorch_emulator
from portico.ipu import backend


def test_emulator_stands_in_where_poptorch_is_not_installed():
    assert backend.poptorch() is poptorch_emulator
    assert backend.Options is poptorch_emulator.Options


def test_poptorch_that_fails_to_import_gives_one_clear_message(tmp_path, monkeypatch):
    (tmp_path / "poptorch.py").write_text("raise ImportError('needs torch 2.0.1')")
    monkeypatch.syspath_prepend(tmp_path)
    backend.poptorch.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"refuses to be imported beside torch .*: needs torch 2.0.1\. It is"):
            backend.poptorch()
    finally:
        backend.poptorch.cache_clear()
