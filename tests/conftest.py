import gc
import logging
import os
import sys

import pytest
import torch
from hypothesis import settings
from transformers.utils import logging as transformers_logging

from portico.cli import main

# The models of the tests are so small that a second thread only slows them down; the same holds in processes and
# notebooks that tests start.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each test compiles its own graphs.
os.environ.setdefault("PORTICO_ORT_CACHE_DIR", "off")
# Runs log to the logger of transformers, which does not propagate to pytest's handler by default.
transformers_logging.enable_propagation()


# The same cases in every run; HYPOTHESIS_PROFILE=default searches for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True, scope="module")
def cheap_collections():
    """Exempt existing objects from garbage collection, which transformers runs in full for each training."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def log_levels():
    """Restore the log levels of both libraries, which a trainer sets."""
    level, verbosity = logging.getLogger("portico").level, transformers_logging.get_verbosity()
    yield
    logging.getLogger("portico").setLevel(level)
    transformers_logging.set_verbosity(verbosity)


@pytest.fixture
def kept_logging(monkeypatch):
    """Restore the root logger, which Hydra configures."""
    # Configuring closes all existing handlers, and that of absl then closes pytest's stream.
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
