"""Machine reading comprehension: examples, features, answers, metrics, report."""

from portico.imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
