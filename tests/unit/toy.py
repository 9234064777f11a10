"""Former place of :mod:`models`, for the rooms that still import it from here."""

from models import Line, Points, toy_trainer

__all__ = ["Line", "Points", "toy_trainer"]
