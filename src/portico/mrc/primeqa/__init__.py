"""PrimeQA's names, each in its place here: ``from portico.mrc.primeqa import MRCTrainer``."""

from portico.imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
