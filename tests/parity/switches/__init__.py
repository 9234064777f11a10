"""Negative controls: functions that each break one thing that makes the numbers those of transformers.

Each takes pytest's ``monkeypatch`` and patches a method of a class. A comparison that still passes could never fail.
"""

import importlib
import os

import pytest

# Names the switches for processes that tests start.
VARIABLE = "PARITY_SWITCH"


def throw(names, patch):
    """Apply the switches ``MODULE.FUNCTION``, separated by spaces."""
    for name in names.split():
        module, _, function = name.partition(".")
        getattr(importlib.import_module(f"parity.switches.{module}"), function)(patch)


def throw_as_parent():
    """Apply the switches of the parent process, if any, for the rest of this one."""
    if VARIABLE in os.environ:
        throw(os.environ[VARIABLE], pytest.MonkeyPatch())
