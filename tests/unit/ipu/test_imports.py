"""Any module of portico.ipu can be the first import of a process."""

from fresh_process import LARGE, assert_runs_anew


def test_any_module_can_come_first():
    assert_runs_anew(
        "from portico import IPUStrategy",
        "import portico.ipu.data",
        "import portico.ipu.precision",
        "from portico import IPUGradientDescentTrainer",
        after=LARGE,
    )
