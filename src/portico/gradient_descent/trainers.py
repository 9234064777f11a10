"""Every trainer that a configuration names; importing this module registers them."""

from portico.gradient_descent.gradient_descent_trainer import GradientDescentTrainer
from portico.gradient_descent.no_op import NoOpTrainer
from portico.gradient_descent.trainer import Trainer

__all__ = ["GradientDescentTrainer", "NoOpTrainer", "Trainer"]
