"""Negative controls of whole modules: their tests fail when the behaviour they test is broken.

Where :mod:`parity.test_training` has a row for each case, here a module runs once under a switch, in a process of its
own, and every test of it must fail but those named below, each with the reason.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

# Module: its switches, and the prefixes of the tests that still pass, each with the reason.
CONTROLS = {
    "events": ("order_not_seeded", {"test_lightning_callbacks_stop_a_run": "tests portico alone"}),
    "every_field": (
        "order_not_seeded learning_rate_halved",
        {
            "test_tensorboard_values_can_be_read": "tests portico alone",
            "test_every_field_with_an_effect": "does not train",
            "test_every_scenario_sets_its_fields": "does not train",
        },
    ),
    "example_script": ("order_not_seeded", {}),
    "exceptions": ("all_errors_alike", {}),
    "gradient_descent": ("gradients_not_rescaled", {}),
    "hooks": ("overrides_ignored", {}),
    "hub": ("nothing_uploaded", {}),
    "messages": ("nothing_logged all_errors_alike", {}),
    "optimizers": ("learning_rate_halved", {}),
    "overrides": (
        "overrides_ignored",
        {
            "test_override_may_rename_arguments": "does not train",
            "test_same_numbers_with_overridden[copies]": "its overrides do what transformers does",
        },
    ),
    "search": ("order_not_seeded", {}),
    "search_services": ("order_not_seeded", {}),
    "seq2seq": ("order_not_seeded", {"test_seq2seq_arguments_unpickle": "does not train"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("module", CONTROLS)
def test_module_fails_under_switch(module, tmp_path):
    switches, kept = CONTROLS[module]
    failed = outcomes(module, switches, tmp_path / "failed.json")
    stayed = {name.partition("::")[2] for name, fails in failed.items() if not fails}
    assert {name for name in stayed if not name.startswith(tuple(kept))} == set()
    assert {start for start in kept if not any(name.startswith(start) for name in stayed)} == set(), "they fail too"
    assert any(failed.values())


def outcomes(module, switches, file):
    """Run the quick tests of ``module`` under ``switches`` (separated by spaces), and return which failed."""
    command = [sys.executable, "-m", "pytest", str(FOLDER / f"test_{module}.py"), "-p", "parity.switched"]
    options = [f"--switch={switches}", f"--failed={file}", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow"]
    path = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [*command, *options],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert file.exists(), ended.stdout[-2000:] + ended.stderr[-2000:]
    return json.loads(file.read_text(encoding="utf-8"))
