"""PrimeQA's names, each in its place here: ``from portico.mrc.primeqa import MRCTrainer``."""

from portico.lazy import lazy_exports

_HOMES = {
    "AbstractPostProcessor": "portico.mrc.post_processors.abstract",
    "ConfidenceScorer": "portico.mrc.post_processors.confidence",
    "ELI5FiDPostProcessor": "portico.mrc.post_processors.eli5_fid",
    "EvalPredictionWithProcessing": "portico.mrc.eval_prediction",
    "ExtractivePipelinePostProcessor": "portico.mrc.post_processors.extractive_pipeline",
    "ExtractivePostProcessor": "portico.mrc.post_processors.extractive",
    "ExtractiveReader": "portico.mrc.reader.extractive_reader",
    "MLQA": "portico.mrc.metrics.primeqa",
    "MRCTrainer": "portico.mrc.trainer",
    "NQF1": "portico.mrc.metrics.primeqa",
    "NaturalQuestionsPostProcessor": "portico.mrc.post_processors.natural_questions",
    "ROUGE": "portico.mrc.metrics.primeqa",
    "SQUAD": "portico.mrc.metrics.primeqa",
    "SQUADPostProcessor": "portico.mrc.post_processors.squad",
    "ScoreNormalizer": "portico.mrc.post_processors.score_normalizer",
    "SupportedSpanScorers": "portico.mrc.answers.scorers",
    "TargetType": "portico.mrc.target_type",
    "TyDiF1": "portico.mrc.metrics.primeqa",
    "initialize_scorer": "portico.mrc.answers.scorers",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
