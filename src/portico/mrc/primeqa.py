"""PrimeQA's names, each in its place here: ``from portico.mrc.primeqa import MRCTrainer``."""

from portico.lazy import lazy_exports

_HOMES = {
    "AbstractPostProcessor": "portico.mrc.post_processors.abstract",
    "ConfidenceScorer": "portico.mrc.post_processors.confidence",
    "ELI5FiDPostProcessor": "portico.mrc.post_processors.eli5_fid",
    "EXTRACTIVE_HEAD": "portico.mrc.models.heads",
    "EXTRACTIVE_WITH_CONFIDENCE_HEAD": "portico.mrc.models.heads",
    "EvalPredictionWithProcessing": "portico.mrc.eval_prediction",
    "ExtractivePipelinePostProcessor": "portico.mrc.post_processors.extractive_pipeline",
    "ExtractivePostProcessor": "portico.mrc.post_processors.extractive",
    "ExtractiveQAHead": "portico.mrc.models.heads",
    "ExtractiveQAModelOutput": "portico.mrc.models.heads.outputs",
    "ExtractiveQAWithConfidenceHead": "portico.mrc.models.heads",
    "ExtractiveQAWithConfidenceModelOutput": "portico.mrc.models.heads.outputs",
    "ExtractiveReader": "portico.mrc.reader.extractive_reader",
    "FID_HEAD": "portico.mrc.models.fusion_in_decoder",
    "FiDDataCollator": "portico.mrc.fid_collator",
    "FiDModelForDownstreamTasks": "portico.mrc.models.fusion_in_decoder",
    "IndividualDomainBatchSampler": "portico.mrc.multi_source.sampler",
    "MLQA": "portico.mrc.metrics.primeqa",
    "MRCSeq2SeqTrainer": "portico.mrc.seq2seq.trainer",
    "MRCTrainer": "portico.mrc.trainer",
    "MSKD_MRCTrainer": "portico.mrc.multi_source.mskd_trainer",
    "ModelForDownstreamTasks": "portico.mrc.models.task_model",
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
