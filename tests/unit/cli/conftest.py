import logging
import sys

import pytest

import fake_runner
from portico.cli import main

TRAIN = ("train.py", "+experiment=mrc", *fake_runner.OVERRIDES)


@pytest.fixture
def kept_logging():
    """Hydra configures the root logger; put it back so that no other test sees it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def train(monkeypatch, tmp_path, kept_logging):
    """Run the command line in an empty working folder; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def train(*overrides, argv=TRAIN):
        monkeypatch.setattr(sys, "argv", [*argv, *overrides])
        try:
            main()
        except SystemExit as end:
            return end.code
        return 0

    return train
