"""AllenNLP's trainer: ``GradientDescentTrainer`` with its schedulers, checkpointer, averages and callbacks.

A second facade over the module, the data module, the evaluation and the loops of the Hugging Face one:
``gradient_descent_trainer`` (what users build) -> ``descent`` (what happens in a training) -> ``loop`` (the Hugging
Face facade underneath) -> ``run`` (the order of events) -> Lightning.
"""

from portico.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
