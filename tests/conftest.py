import functools
import gc
import logging
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from lightning.fabric.utilities import registry
from transformers.utils import logging as transformers_logging

from portico.cli import main

# The models of the tests are so small that a second thread only slows them down; the same holds in processes and
# notebooks that tests start.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each test compiles its own graphs.
os.environ.setdefault("PORTICO_ORT_CACHE_DIR", "off")
# Lightning reads the metadata of every installed package for each `lightning.Trainer`: half of the time of a toy run.
registry.entry_points = functools.cache(registry.entry_points)
# Runs log to the logger of transformers, which does not propagate to pytest's handler by default.
transformers_logging.enable_propagation()


# The same cases in every run; HYPOTHESIS_PROFILE=default searches for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# The files that take longest, in this order. Processes of pytest-xdist start with them, so that all end together.
SLOWEST = [
    "unit/ort/compiler/lowerings/test_every_lowering.py",
    "unit/commands/test_run.py",
    "parity/test_training.py",
    "unit/hydra_plugins/test_portico_optuna.py",
    "unit/test_hostile_folders.py",
    "unit/cli/test_app.py",
    "unit/ort/test_trainer.py",
    "unit/ort/test_families.py",
    "end_to_end/test_notebooks.py",
    "unit/distributed/test_model_parallel.py",
    "parity/test_processes.py",
    "end_to_end/test_verify.py",
    "config/test_conf.py",
    "unit/cli/test_compose.py",
    "unit/tasks/test_experiment.py",
    "unit/mrc/report/test_browser.py",
    "parity/test_seq2seq.py",
    "unit/ort/test_runtime.py",
    "unit/mrc/test_demo.py",
    "unit/ort/compiler/lowerings/test_attention.py",
    "end_to_end/test_command_line.py",
    "unit/ipu/test_trainer.py",
    "parity/test_overrides.py",
    "end_to_end/test_broken_processes.py",
    "parity/test_corrections.py",
    "unit/commands/test_install.py",
    "unit/loop/test_corrections.py",
    "unit/test_imports.py",
    "unit/gradient_descent/test_experiment.py",
    "unit/ort/test_api.py",
    "unit/test_without_accelerate.py",
]


_NUM_FROZEN_MODULES = pytest.StashKey[int]()


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist would sort files by their number of tests
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "parity" in item.path.parts:
            item.add_marker("pinned")
    if not hasattr(config, "workerinput"):
        return
    numbers = Counter(item.path for item in items)
    places = {Path(__file__).parent / name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: (places.get(item.path, len(places)), -numbers[item.path]))


def pytest_runtest_setup(item):
    """Exempt what imports have made from garbage collection, which transformers runs in full for each training."""
    if len(sys.modules) > item.config.stash.get(_NUM_FROZEN_MODULES, 0):
        item.config.stash[_NUM_FROZEN_MODULES] = len(sys.modules)
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
