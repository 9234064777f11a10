import logging
import pickle
import sys

import numpy as np
import pytest

from portico.errors import InputError
from portico.hp_search import FiniteObjective, checked_directions


def metric(metrics):
    return metrics["metric"]


@pytest.mark.parametrize(("direction", "worst"), [("minimize", sys.float_info.max), ("maximize", -sys.float_info.max)])
@pytest.mark.parametrize("nan", [float("nan"), np.float32("nan")])
def test_nan_becomes_the_worst_finite_value(direction, worst, nan, caplog):
    caplog.set_level(logging.WARNING, logger="portico")
    assert FiniteObjective(metric, [direction])({"metric": nan}) == worst
    assert "The objective of a trial is NaN; the search gets the worst finite value" in caplog.text


@pytest.mark.parametrize("value", [1.5, 0, float("inf"), None, "kept"])
def test_other_values_stay(value, caplog):
    assert FiniteObjective(metric, ["minimize"])({"metric": value}) is value
    assert not caplog.records


def test_each_objective_has_its_own_worst_value():
    objective = FiniteObjective(metric, ["minimize", "maximize"])
    nan = float("nan")
    assert objective({"metric": (nan, nan)}) == [sys.float_info.max, -sys.float_info.max]
    assert objective({"metric": [1.0, nan]}) == [1.0, -sys.float_info.max]


def test_it_travels_to_other_processes():
    assert pickle.loads(pickle.dumps(FiniteObjective(metric, ["minimize"])))({"metric": 3}) == 3


def test_directions():
    assert checked_directions("maximize") == ["maximize"]
    assert checked_directions(["minimize", "maximize"]) == ["minimize", "maximize"]


@pytest.mark.parametrize("direction", ["down", ["minimize", "up"], [], None, ("minimize",)])
def test_another_direction_is_refused(direction):
    with pytest.raises(InputError, match="is no direction; set it to 'minimize' or 'maximize', or to a list with one"):
        checked_directions(direction)
