"""A pytest plugin that applies some of :mod:`parity.switches` to a whole run and records which tests failed.

Usage: pytest -p parity.switched --switch='FUNCTION ...' --failed=FILE ...
"""

import json
from pathlib import Path

import pytest

from parity import switches


def pytest_addoption(parser):
    parser.addoption("--switch", required=True, help="names of switches")
    parser.addoption("--failed", required=True, type=Path, help="where the outcomes of the tests are written, as JSON")


class Outcomes:
    """Record which tests failed, in the test or in a fixture."""

    def __init__(self, file):
        self.file = file
        self.failed = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.rpartition("/")[2]
        self.failed[name] = self.failed.get(name, False) or report.failed

    def pytest_sessionfinish(self):
        self.file.write_text(json.dumps(self.failed), encoding="utf-8")


def pytest_configure(config):
    # Before the tests are imported, since some take names from the patched modules.
    patch = pytest.MonkeyPatch()
    switches.throw(config.getoption("--switch"), patch)
    patch.setenv(switches.VARIABLE, config.getoption("--switch"))
    config.add_cleanup(patch.undo)
    config.pluginmanager.register(Outcomes(config.getoption("--failed")))
