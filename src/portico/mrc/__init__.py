"""Machine reading comprehension: examples, features, answers, metrics, report."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.mrc.collators.fusion_in_decoder import FiDDataCollator as FiDDataCollator
    from portico.mrc.collators.head_inputs import BeamSearchCollator as BeamSearchCollator
    from portico.mrc.collators.head_inputs import TargetTypeCollator as TargetTypeCollator
    from portico.mrc.distillation.losses import Distillation as Distillation
    from portico.mrc.distillation.mixin import DistillationMixin as DistillationMixin
    from portico.mrc.features.feature_set import FeatureSet as FeatureSet
    from portico.mrc.features.featurizer import Featurizer as Featurizer
    from portico.mrc.metrics import Mlqa as Mlqa
    from portico.mrc.metrics import Mrqa as Mrqa
    from portico.mrc.metrics import NqF1 as NqF1
    from portico.mrc.metrics import Rouge as Rouge
    from portico.mrc.metrics import SquadV1 as SquadV1
    from portico.mrc.metrics import SquadV2 as SquadV2
    from portico.mrc.metrics import TydiF1 as TydiF1
    from portico.mrc.metrics import squad_metrics as squad_metrics
    from portico.mrc.models.fusion_in_decoder import FID_HEAD as FID_HEAD
    from portico.mrc.models.fusion_in_decoder import FiDModelForDownstreamTasks as FiDModelForDownstreamTasks
    from portico.mrc.models.heads import BEAM_SEARCH_HEAD as BEAM_SEARCH_HEAD
    from portico.mrc.models.heads import EXTRACTIVE_HEAD as EXTRACTIVE_HEAD
    from portico.mrc.models.heads import EXTRACTIVE_WITH_CONFIDENCE_HEAD as EXTRACTIVE_WITH_CONFIDENCE_HEAD
    from portico.mrc.models.heads.beam_search import BeamSearchQAHead as BeamSearchQAHead
    from portico.mrc.models.heads.confidence import ExtractiveQAWithConfidenceHead as ExtractiveQAWithConfidenceHead
    from portico.mrc.models.heads.extractive import ExtractiveQAHead as ExtractiveQAHead
    from portico.mrc.models.heads.outputs import ExtractiveQAModelOutput as ExtractiveQAModelOutput
    from portico.mrc.models.heads.outputs import (
        ExtractiveQAWithConfidenceModelOutput as ExtractiveQAWithConfidenceModelOutput,
    )
    from portico.mrc.models.task_model import ModelForDownstreamTasks as ModelForDownstreamTasks
    from portico.mrc.multi_source.mixin import MultiSourceMixin as MultiSourceMixin
    from portico.mrc.multi_source.mskd_trainer import MSKD_MRCTrainer as MSKD_MRCTrainer
    from portico.mrc.multi_source.sampler import IndividualDomainBatchSampler as IndividualDomainBatchSampler
    from portico.mrc.multi_source.trainer import MultiSourceMRCTrainer as MultiSourceMRCTrainer
    from portico.mrc.postprocess import AnswerCalibration as AnswerCalibration
    from portico.mrc.postprocess import Answers as Answers
    from portico.mrc.postprocess import BeamPostProcessor as BeamPostProcessor
    from portico.mrc.postprocess import SpanPostProcessor as SpanPostProcessor
    from portico.mrc.postprocess import postprocess_qa_predictions as postprocess_qa_predictions
    from portico.mrc.postprocess import (
        postprocess_qa_predictions_with_beam_search as postprocess_qa_predictions_with_beam_search,
    )
    from portico.mrc.postprocess.span_postprocessing import SpanPostProcessing as SpanPostProcessing
    from portico.mrc.postprocess.span_postprocessing import SquadMetrics as SquadMetrics
    from portico.mrc.primeqa.postprocessors import (
        EvalPredictionWithProcessing as EvalPredictionWithProcessing,
    )
    from portico.mrc.reader import Answer as Answer
    from portico.mrc.reader import Reader as Reader
    from portico.mrc.readers import read_examples as read_examples
    from portico.mrc.readers import read_squad as read_squad
    from portico.mrc.seq2seq.features import GenerativeFeaturizer as GenerativeFeaturizer
    from portico.mrc.seq2seq.post_processing import GeneratedAnswerProcessing as GeneratedAnswerProcessing
    from portico.mrc.seq2seq.trainer import Seq2SeqMRCTrainer as Seq2SeqMRCTrainer
    from portico.mrc.trainer import MRCTrainer as MRCTrainer

_HOMES = {
    "Answer": "portico.mrc.reader",
    "AnswerCalibration": "portico.mrc.postprocess",
    "Answers": "portico.mrc.postprocess",
    "BEAM_SEARCH_HEAD": "portico.mrc.models.heads",
    "BeamPostProcessor": "portico.mrc.postprocess",
    "BeamSearchCollator": "portico.mrc.collators.head_inputs",
    "BeamSearchQAHead": "portico.mrc.models.heads.beam_search",
    "Distillation": "portico.mrc.distillation.losses",
    "DistillationMixin": "portico.mrc.distillation.mixin",
    "EXTRACTIVE_HEAD": "portico.mrc.models.heads",
    "EXTRACTIVE_WITH_CONFIDENCE_HEAD": "portico.mrc.models.heads",
    "EvalPredictionWithProcessing": "portico.mrc.primeqa.postprocessors",
    "ExtractiveQAHead": "portico.mrc.models.heads.extractive",
    "ExtractiveQAModelOutput": "portico.mrc.models.heads.outputs",
    "ExtractiveQAWithConfidenceHead": "portico.mrc.models.heads.confidence",
    "ExtractiveQAWithConfidenceModelOutput": "portico.mrc.models.heads.outputs",
    "FID_HEAD": "portico.mrc.models.fusion_in_decoder",
    "FeatureSet": "portico.mrc.features.feature_set",
    "Featurizer": "portico.mrc.features.featurizer",
    "FiDDataCollator": "portico.mrc.collators.fusion_in_decoder",
    "FiDModelForDownstreamTasks": "portico.mrc.models.fusion_in_decoder",
    "GeneratedAnswerProcessing": "portico.mrc.seq2seq.post_processing",
    "GenerativeFeaturizer": "portico.mrc.seq2seq.features",
    "IndividualDomainBatchSampler": "portico.mrc.multi_source.sampler",
    "MRCTrainer": "portico.mrc.trainer",
    "MSKD_MRCTrainer": "portico.mrc.multi_source.mskd_trainer",
    "Mlqa": "portico.mrc.metrics",
    "ModelForDownstreamTasks": "portico.mrc.models.task_model",
    "Mrqa": "portico.mrc.metrics",
    "MultiSourceMRCTrainer": "portico.mrc.multi_source.trainer",
    "MultiSourceMixin": "portico.mrc.multi_source.mixin",
    "NqF1": "portico.mrc.metrics",
    "Reader": "portico.mrc.reader",
    "Rouge": "portico.mrc.metrics",
    "Seq2SeqMRCTrainer": "portico.mrc.seq2seq.trainer",
    "SpanPostProcessing": "portico.mrc.postprocess.span_postprocessing",
    "SpanPostProcessor": "portico.mrc.postprocess",
    "SquadMetrics": "portico.mrc.postprocess.span_postprocessing",
    "SquadV1": "portico.mrc.metrics",
    "SquadV2": "portico.mrc.metrics",
    "TargetTypeCollator": "portico.mrc.collators.head_inputs",
    "TydiF1": "portico.mrc.metrics",
    "postprocess_qa_predictions": "portico.mrc.postprocess",
    "postprocess_qa_predictions_with_beam_search": "portico.mrc.postprocess",
    "read_examples": "portico.mrc.readers",
    "read_squad": "portico.mrc.readers",
    "squad_metrics": "portico.mrc.metrics",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
