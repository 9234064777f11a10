"""Machine reading comprehension: examples, features, answers, metrics, report."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.mrc.answers import AnswerCalibration as AnswerCalibration
    from portico.mrc.answers import Answers as Answers
    from portico.mrc.answers import BeamPostProcessor as BeamPostProcessor
    from portico.mrc.answers import SpanPostProcessor as SpanPostProcessor
    from portico.mrc.answers import postprocess_qa_predictions as postprocess_qa_predictions
    from portico.mrc.answers import (
        postprocess_qa_predictions_with_beam_search as postprocess_qa_predictions_with_beam_search,
    )
    from portico.mrc.collators import BeamSearchCollator as BeamSearchCollator
    from portico.mrc.collators import FiDDataCollator as FiDDataCollator
    from portico.mrc.collators import TargetTypeCollator as TargetTypeCollator
    from portico.mrc.distillation import Distillation as Distillation
    from portico.mrc.distillation import DistillationMixin as DistillationMixin
    from portico.mrc.features.feature_set import FeatureSet as FeatureSet
    from portico.mrc.features.featurizer import Featurizer as Featurizer
    from portico.mrc.generative import GeneratedAnswerProcessing as GeneratedAnswerProcessing
    from portico.mrc.generative import GenerativeFeaturizer as GenerativeFeaturizer
    from portico.mrc.generative import Seq2SeqMRCTrainer as Seq2SeqMRCTrainer
    from portico.mrc.inference import Answer as Answer
    from portico.mrc.inference import Reader as Reader
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
    from portico.mrc.models.heads import BeamSearchQAHead as BeamSearchQAHead
    from portico.mrc.models.heads import ExtractiveQAHead as ExtractiveQAHead
    from portico.mrc.models.heads import ExtractiveQAModelOutput as ExtractiveQAModelOutput
    from portico.mrc.models.heads import ExtractiveQAWithConfidenceHead as ExtractiveQAWithConfidenceHead
    from portico.mrc.models.heads import (
        ExtractiveQAWithConfidenceModelOutput as ExtractiveQAWithConfidenceModelOutput,
    )
    from portico.mrc.models.task_model import ModelForDownstreamTasks as ModelForDownstreamTasks
    from portico.mrc.multi_source import IndividualDomainBatchSampler as IndividualDomainBatchSampler
    from portico.mrc.multi_source import MultiSourceMixin as MultiSourceMixin
    from portico.mrc.multi_source import MultiSourceMRCTrainer as MultiSourceMRCTrainer
    from portico.mrc.post_processing.eval_prediction import (
        EvalPredictionWithProcessing as EvalPredictionWithProcessing,
    )
    from portico.mrc.post_processing.span_post_processing import SpanPostProcessing as SpanPostProcessing
    from portico.mrc.post_processing.span_post_processing import SquadMetrics as SquadMetrics
    from portico.mrc.primeqa.trainers import MSKD_MRCTrainer as MSKD_MRCTrainer
    from portico.mrc.readers import read_examples as read_examples
    from portico.mrc.readers import read_squad as read_squad
    from portico.mrc.trainer import MRCTrainer as MRCTrainer

_HOMES = {
    "Answer": "portico.mrc.inference",
    "AnswerCalibration": "portico.mrc.answers",
    "Answers": "portico.mrc.answers",
    "BEAM_SEARCH_HEAD": "portico.mrc.models.heads",
    "BeamPostProcessor": "portico.mrc.answers",
    "BeamSearchCollator": "portico.mrc.collators",
    "BeamSearchQAHead": "portico.mrc.models.heads",
    "Distillation": "portico.mrc.distillation",
    "DistillationMixin": "portico.mrc.distillation",
    "EXTRACTIVE_HEAD": "portico.mrc.models.heads",
    "EXTRACTIVE_WITH_CONFIDENCE_HEAD": "portico.mrc.models.heads",
    "EvalPredictionWithProcessing": "portico.mrc.post_processing.eval_prediction",
    "ExtractiveQAHead": "portico.mrc.models.heads",
    "ExtractiveQAModelOutput": "portico.mrc.models.heads",
    "ExtractiveQAWithConfidenceHead": "portico.mrc.models.heads",
    "ExtractiveQAWithConfidenceModelOutput": "portico.mrc.models.heads",
    "FID_HEAD": "portico.mrc.models.fusion_in_decoder",
    "FeatureSet": "portico.mrc.features.feature_set",
    "Featurizer": "portico.mrc.features.featurizer",
    "FiDDataCollator": "portico.mrc.collators",
    "FiDModelForDownstreamTasks": "portico.mrc.models.fusion_in_decoder",
    "GeneratedAnswerProcessing": "portico.mrc.generative",
    "GenerativeFeaturizer": "portico.mrc.generative",
    "IndividualDomainBatchSampler": "portico.mrc.multi_source",
    "MRCTrainer": "portico.mrc.trainer",
    "MSKD_MRCTrainer": "portico.mrc.primeqa.trainers",
    "Mlqa": "portico.mrc.metrics",
    "ModelForDownstreamTasks": "portico.mrc.models.task_model",
    "Mrqa": "portico.mrc.metrics",
    "MultiSourceMRCTrainer": "portico.mrc.multi_source",
    "MultiSourceMixin": "portico.mrc.multi_source",
    "NqF1": "portico.mrc.metrics",
    "Reader": "portico.mrc.inference",
    "Rouge": "portico.mrc.metrics",
    "Seq2SeqMRCTrainer": "portico.mrc.generative",
    "SpanPostProcessing": "portico.mrc.post_processing.span_post_processing",
    "SpanPostProcessor": "portico.mrc.answers",
    "SquadMetrics": "portico.mrc.post_processing.span_post_processing",
    "SquadV1": "portico.mrc.metrics",
    "SquadV2": "portico.mrc.metrics",
    "TargetTypeCollator": "portico.mrc.collators",
    "TydiF1": "portico.mrc.metrics",
    "postprocess_qa_predictions": "portico.mrc.answers",
    "postprocess_qa_predictions_with_beam_search": "portico.mrc.answers",
    "read_examples": "portico.mrc.readers",
    "read_squad": "portico.mrc.readers",
    "squad_metrics": "portico.mrc.metrics",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
