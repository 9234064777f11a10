"""PrimeQA's names, each in its place here: ``from portico.mrc.primeqa import MRCTrainer``."""

from portico.lazy import lazy_exports

_HOMES = {
    "EXTRACTIVE_HEAD": "portico.mrc.models.heads",
    "EXTRACTIVE_WITH_CONFIDENCE_HEAD": "portico.mrc.models.heads",
    "EvalPredictionWithProcessing": "portico.mrc.eval_prediction",
    "ExtractiveQAHead": "portico.mrc.models.heads.extractive",
    "ExtractiveQAModelOutput": "portico.mrc.models.heads.outputs",
    "ExtractiveQAWithConfidenceHead": "portico.mrc.models.heads.confidence",
    "ExtractiveQAWithConfidenceModelOutput": "portico.mrc.models.heads.outputs",
    "FID_HEAD": "portico.mrc.models.fusion_in_decoder",
    "FiDDataCollator": "portico.mrc.fid_collator",
    "FiDModelForDownstreamTasks": "portico.mrc.models.fusion_in_decoder",
    "IndividualDomainBatchSampler": "portico.mrc.multi_source.sampler",
    "MRCSeq2SeqTrainer": "portico.mrc.seq2seq.trainer",
    "MRCTrainer": "portico.mrc.trainer",
    "MSKD_MRCTrainer": "portico.mrc.multi_source.mskd_trainer",
    "ModelForDownstreamTasks": "portico.mrc.models.task_model",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
