"""The one number that a sweep compares its runs by."""

import logging
import math
import sys
from collections.abc import Mapping
from typing import Any

from portico.cli.keys import suggestion
from portico.errors import InputError

log = logging.getLogger(__name__)


def check_mode(objective: Mapping[str, Any]) -> None:
    """Refuse a direction that is none, before the run that it would compare.

    Raises:
        InputError: If `mode` is another word than "max" and "min".
    """
    mode = objective["mode"]
    if mode not in ("max", "min"):
        raise InputError(f"objective.mode='{mode}' is neither 'max' nor 'min'; set the one that means better.")


def objective_value(metrics: Mapping[str, float], objective: Mapping[str, Any]) -> float | None:
    """Return the metric that the sweep optimises.

    Args:
        metrics: What the runner returned.
        objective: `metric`, a key of the metrics or None, and `mode`, "max" or "min".

    Returns:
        A finite Python float, since a sweeper stops at anything else: in place of NaN or infinity the worst value of
        the mode, with a warning. None if no metric is named.

    Raises:
        InputError: If the run has no such metric.
    """
    name, mode = objective["metric"], objective["mode"]
    if name is None:
        return None
    if name not in metrics:
        raise InputError(
            f"objective.metric='{name}' is not a metric of this run{suggestion(name, list(metrics))} "
            f"The run has: {', '.join(metrics)}. Its results are written; set objective.metric to one of these."
        )
    value = float(metrics[name])
    if math.isfinite(value):
        return value
    worst = -sys.float_info.max if mode == "max" else sys.float_info.max
    log.warning("%s is %s; the sweep gets the worst finite value %g in its place.", name, value, worst)
    return worst
