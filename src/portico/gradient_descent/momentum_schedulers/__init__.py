"""Momentum schedules under AllenNLP's names; importing this package registers them."""

from portico.gradient_descent.momentum_schedulers.inverted_triangular import InvertedTriangular
from portico.gradient_descent.momentum_schedulers.momentum_scheduler import MomentumScheduler

__all__ = ["InvertedTriangular", "MomentumScheduler"]
