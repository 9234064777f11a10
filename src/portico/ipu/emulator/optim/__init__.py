"""The optimizers of ``poptorch``: usable on the host, and read by an executor that updates the device's weights."""

from portico.ipu.emulator.optim.adam import Adam, AdamW
from portico.ipu.emulator.optim.lamb import LAMB
from portico.ipu.emulator.optim.optimizer import Optimizer, VariableAttributes
from portico.ipu.emulator.optim.rmsprop import RMSprop
from portico.ipu.emulator.optim.sgd import SGD

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
