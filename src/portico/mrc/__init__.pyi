from portico.mrc.collators import BeamSearchCollator as BeamSearchCollator
from portico.mrc.collators import FiDDataCollator as FiDDataCollator
from portico.mrc.collators import TargetTypeCollator as TargetTypeCollator
from portico.mrc.config import load_examples as load_examples
from portico.mrc.datasets import read_examples as read_examples
from portico.mrc.datasets import read_squad as read_squad
from portico.mrc.distillation import Distillation as Distillation
from portico.mrc.distillation import DistillationMixin as DistillationMixin
from portico.mrc.features.featurizer import Featurizer as Featurizer
from portico.mrc.features.windows import FeatureSet as FeatureSet
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
from portico.mrc.primeqa.postprocessors import EvalPredictionWithProcessing as EvalPredictionWithProcessing
from portico.mrc.primeqa.trainers import MSKD_MRCTrainer as MSKD_MRCTrainer
from portico.mrc.report.command import write_page as write_page
from portico.mrc.trainer import MRCTrainer as MRCTrainer
