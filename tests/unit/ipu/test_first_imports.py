"""Any module of the room can be the first that a process imports."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "statement",
    [
        "from portico import IPUStrategy",
        "import portico.ipu.data",
        "import portico.ipu.precision",
        "from portico import IPUGradientDescentTrainer",
    ],
)
def test_works(statement):
    subprocess.run([sys.executable, "-W", "ignore", "-c", statement], check=True, capture_output=True)
