"""PrimeQA's names, each in its place here: ``from portico.mrc.primeqa import MRCTrainer``."""

from portico.lazy import lazy_exports

_HOMES = {
    "MLQA": "portico.mrc.metrics.primeqa",
    "MRCTrainer": "portico.mrc.trainer",
    "NQF1": "portico.mrc.metrics.primeqa",
    "ROUGE": "portico.mrc.metrics.primeqa",
    "SQUAD": "portico.mrc.metrics.primeqa",
    "TyDiF1": "portico.mrc.metrics.primeqa",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
