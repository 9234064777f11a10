"""A pytest plugin: some of :mod:`parity.switches` are off for a whole run, whose failed tests are written down.

Usage: pytest -p parity.switched --switch='MODULE.FUNCTION ...' --failed=FILE ...
"""

import json
from pathlib import Path

import pytest

from parity import switches


def pytest_addoption(parser):
    parser.addoption("--switch", required=True, help="modules and names of switches")
    parser.addoption("--failed", required=True, type=Path, help="where the outcomes of the tests are written, as JSON")


class Outcomes:
    """Collects which tests failed, in the test itself or in a fixture."""

    def __init__(self, file):
        self.file = file
        self.failed = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.rpartition("/")[2]
        self.failed[name] = self.failed.get(name, False) or report.failed

    def pytest_sessionfinish(self):
        self.file.write_text(json.dumps(self.failed), encoding="utf-8")


def pytest_configure(config):
    # Before the tests are imported: some take names out of the modules that a switch patches.
    patch = pytest.MonkeyPatch()
    switches.throw(config.getoption("--switch"), patch)
    patch.setenv(switches.VARIABLE, config.getoption("--switch"))
    config.add_cleanup(patch.undo)
    config.pluginmanager.register(Outcomes(config.getoption("--failed")))
