"""Two processes in ONNX Runtime train as one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    path = os.pathsep.join([str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")])
    for devices in (1, 2):
        subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path), str(devices)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=900,
        )
    one, two = (torch.load(tmp_path / f"{devices}.pt") for devices in (1, 2))
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["kinds"] == two["kinds"] == ["forward", "backward"]
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, atol=1e-6, rtol=1e-5, msg=name)
