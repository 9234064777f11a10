import functools
import gc
import logging
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from portico.imports import when_imported

# Nothing large is imported here: torch, Lightning and transformers take seconds, and many tests need none of them.

# The models of the tests are so small that a second thread only slows them down. Torch reads this when it is imported,
# here and in the processes and notebooks that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each test compiles its own graphs.
os.environ.setdefault("PORTICO_ORT_CACHE_DIR", "off")


def cache_entry_points():
    """Let Lightning read the metadata of all packages once: each ``lightning.Trainer`` does, half of a toy run."""
    registry = sys.modules["lightning.fabric.utilities.registry"]
    registry.entry_points = functools.cache(registry.entry_points)


def propagate_logs():
    """Let pytest see what runs log to the logger of transformers."""
    sys.modules["transformers.utils.logging"].enable_propagation()


def repeat_cases():
    """Test the same generated cases in every run; HYPOTHESIS_PROFILE=default searches for new ones."""
    settings = sys.modules["hypothesis"].settings
    settings.register_profile("repeatable", derandomize=True)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


when_imported("lightning.fabric.utilities.registry", cache_entry_points)
when_imported("transformers.utils.logging", propagate_logs)
when_imported("hypothesis", repeat_cases)

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
    level = logging.getLogger("portico").level
    of_transformers = sys.modules.get("transformers.utils.logging")
    verbosity = of_transformers and of_transformers.get_verbosity()
    yield
    logging.getLogger("portico").setLevel(level)
    if of_transformers:
        of_transformers.set_verbosity(verbosity)


@pytest.fixture
def ordinary_folder():
    """A folder of an ordinary user, whose rights the test has; root may do everything."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        if is_root:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if is_root:
                os.seteuid(0)


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
    from portico.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        try:
            main()
        except SystemExit as end:
            return end.code
        return 0

    return run
