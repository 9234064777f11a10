import logging
import math
import sys

import pytest

from portico.cli.objective import check_mode, objective_value
from portico.errors import InputError


def test_is_a_python_float():
    numpy = pytest.importorskip("numpy")
    value = objective_value({"eval_f1": numpy.float32(0.5)}, {"metric": "eval_f1", "mode": "max"})
    assert type(value) is float
    assert value == 0.5


def test_no_metric_no_objective():
    assert objective_value({"eval_f1": 1.0}, {"metric": None, "mode": "max"}) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("mode", "worst"), [("max", -sys.float_info.max), ("min", sys.float_info.max)])
def test_what_is_not_finite_becomes_the_worst_value_with_a_warning(value, mode, worst, caplog):
    with caplog.at_level(logging.WARNING, logger="portico"):
        assert objective_value({"eval_loss": value}, {"metric": "eval_loss", "mode": mode}) == worst
    assert "eval_loss is" in caplog.text
    assert "worst finite value" in caplog.text


def test_unknown_metric_names_those_of_the_run():
    with pytest.raises(InputError, match=r"'eval_f' is not a metric .* eval_f1, .* The run has: eval_f1, eval_loss\."):
        objective_value({"eval_f1": 1.0, "eval_loss": 2.0}, {"metric": "eval_f", "mode": "max"})


def test_unknown_mode():
    with pytest.raises(InputError, match=r"objective.mode='up' is neither 'max' nor 'min'"):
        check_mode({"metric": "eval_f1", "mode": "up"})
