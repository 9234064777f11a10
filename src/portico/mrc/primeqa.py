"""PrimeQA's names, each in its place here: ``from portico.mrc.primeqa import MRCTrainer``."""

from portico.lazy import lazy_exports

_HOMES = {
    "MRCTrainer": "portico.mrc.trainer",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
