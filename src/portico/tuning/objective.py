"""What a search compares its trials by."""

import logging
import math
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from portico.errors import InputError

logger = logging.getLogger(__name__)

DIRECTIONS = ("minimize", "maximize")


def checked_directions(direction: Any) -> list[str]:
    """Return the directions of a search, one for each objective.

    Raises:
        InputError: If one of them is neither ``"minimize"`` nor ``"maximize"``.
    """
    given = direction if isinstance(direction, list) else [direction]
    # Optuna has an enumeration of its own for them.
    directions = [str(getattr(one, "name", one)).lower() for one in given]
    if not directions or not set(directions) <= set(DIRECTIONS):
        raise InputError(
            f"`direction={direction!r}` is no direction; set it to 'minimize' or 'maximize', or to a list with "
            "one for each objective."
        )
    return directions


def worst_value(direction: str) -> float:
    """Return the worst finite float of a direction."""
    return sys.float_info.max if direction == "minimize" else -sys.float_info.max


class FiniteObjective:
    """An objective that is never NaN, which optuna refuses and which compares with nothing.

    Args:
        compute_objective: Makes one number, or a sequence of them, of the metrics of an evaluation.
        directions: The direction of each.
    """

    def __init__(self, compute_objective: Callable[[dict[str, float]], Any], directions: Sequence[str]) -> None:
        self.compute_objective = compute_objective
        self.directions = directions

    def __call__(self, metrics: dict[str, float]) -> Any:
        """Return the objective, the worst finite value in the place of NaN."""
        objective = self.compute_objective(metrics)
        if isinstance(objective, list | tuple):
            return [self._finite(value, way) for value, way in zip(objective, self.directions, strict=True)]
        return self._finite(objective, self.directions[0])

    def _finite(self, value: Any, direction: str) -> Any:
        if not (isinstance(value, Real) and math.isnan(value)):
            return value
        worst = worst_value(direction)
        logger.warning("The objective of a trial is NaN; the search gets the worst finite value %g instead.", worst)
        return worst
