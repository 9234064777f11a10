"""Switches that turn off, one at a time, what makes the numbers those of transformers.

Each takes pytest's ``monkeypatch``. A comparison that still holds with its switch off could never have failed.
"""

import importlib
import os

import pytest

# Tells processes that tests start which switches are off.
VARIABLE = "PARITY_SWITCH"


def throw(names, patch):
    """Throw the switches ``MODULE.FUNCTION``, of which there may be several between spaces."""
    for name in names.split():
        module, _, function = name.partition(".")
        getattr(importlib.import_module(f"parity.switches.{module}"), function)(patch)


def throw_as_parent():
    """Throw the switches of the process that started this one, if there are any, for good."""
    if VARIABLE in os.environ:
        throw(os.environ[VARIABLE], pytest.MonkeyPatch())
