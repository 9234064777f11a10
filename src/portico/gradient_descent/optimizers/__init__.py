"""Optimizers under AllenNLP's names; importing this package registers them all."""

from portico.gradient_descent.optimizers.dense_sparse_adam import DenseSparseAdam
from portico.gradient_descent.optimizers.multi import MultiOptimizer
from portico.gradient_descent.optimizers.optimizer import Optimizer

__all__ = ["DenseSparseAdam", "MultiOptimizer", "Optimizer"]
