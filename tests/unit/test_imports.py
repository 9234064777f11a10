"""Imports on first use."""

import gc

import pytest

from portico.imports import garbage_collection_paused


def fail_without_collection():
    with garbage_collection_paused():
        raise ImportError(f"collects: {gc.isenabled()}")


@pytest.mark.parametrize("was_enabled", [True, False])
def test_imports_pause_the_garbage_collection_and_leave_it_as_it_was(was_enabled):
    before = gc.isenabled()
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(ImportError, match="collects: False"):
            fail_without_collection()
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if before else gc.disable)()
