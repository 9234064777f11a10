"""AllenNLP's trainer: ``GradientDescentTrainer`` with its schedulers, checkpointer, moving average and callbacks.

Read ``trainer`` (what users build), then ``run`` (the order of events, over Hugging Face's and Lightning's loops).
"""

from portico.imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
