import gc
import logging
import os
import sys

import pytest
import torch
from hypothesis import settings
from transformers.utils import logging as transformers_logging

from portico.cli import main

# The models of the tests are so small that a second thread only makes them wait; those of processes and notebooks that
# tests start as well, beside other workers.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each test builds the graphs that it is about.
os.environ.setdefault("PORTICO_ORT_CACHE_DIR", "off")
# What a run says goes to the logger of transformers, which by itself keeps it from pytest.
transformers_logging.enable_propagation()


# The same cases in every run; HYPOTHESIS_PROFILE=default looks for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True, scope="module")
def cheap_collections():
    """Each training under transformers looks through everything there is for garbage; what is there before is none."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def log_levels():
    """A trainer sets the levels of both libraries; the next test finds those it would find alone."""
    level, verbosity = logging.getLogger("portico").level, transformers_logging.get_verbosity()
    yield
    logging.getLogger("portico").setLevel(level)
    transformers_logging.set_verbosity(verbosity)


@pytest.fixture
def kept_logging(monkeypatch):
    """Hydra configures the root logger; put it back so that no other test sees it."""
    # To configure is to close all handlers there are; that of absl closes the stream it was made with: pytest's.
    monkeypatch.setattr(logging, "_handlerList", [])
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def command_line(monkeypatch, kept_logging):
    """Return a function that runs ``train.py`` with arguments in this process, and returns its exit code."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        try:
            main()
        except SystemExit as end:
            return end.code
        return 0

    return run
