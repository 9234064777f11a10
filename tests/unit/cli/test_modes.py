import pytest

from portico.cli.runner import runner_of_mode
from portico.errors import InputError

PREDICT = {"run": "c", "valid_keys": "d"}
TRAINER = {"run": "a", "valid_keys": "b", "modes": {"predict": PREDICT}}


def test_the_mode_chooses_what_runs():
    assert runner_of_mode({"mode": "train", "trainer": TRAINER}) == TRAINER
    assert runner_of_mode({"mode": "predict", "trainer": TRAINER}) == PREDICT


@pytest.mark.parametrize(("trainer", "modes"), [(TRAINER, "train, predict"), ({"run": "a"}, "train")])
def test_a_mode_that_is_none_is_refused(trainer, modes):
    with pytest.raises(InputError, match=rf"mode=guess is none of this trainer's modes; set mode to one of {modes}\."):
        runner_of_mode({"mode": "guess", "trainer": trainer})
