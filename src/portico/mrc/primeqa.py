"""PrimeQA's names, each in its place here: ``from portico.mrc.primeqa import MRCTrainer``."""

from portico.lazy import lazy_exports

_HOMES = {
    "AbstractPreProcessor": "portico.mrc.preprocessors",
    "BasePreProcessor": "portico.mrc.preprocessors",
    "ELI5FiDPreprocessor": "portico.mrc.preprocessors",
    "MRCTrainer": "portico.mrc.trainer",
    "MRQAPreprocessor": "portico.mrc.preprocessors",
    "NaturalQuestionsPreProcessor": "portico.mrc.preprocessors",
    "SQUADPreprocessor": "portico.mrc.preprocessors",
    "SubsampleType": "portico.mrc.preprocessors",
    "TargetType": "portico.mrc.target_type",
    "TyDiBoolQAPreprocessor": "portico.mrc.preprocessors",
    "TyDiQAGooglePreprocessor": "portico.mrc.preprocessors",
    "TyDiQAPreprocessor": "portico.mrc.preprocessors",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
