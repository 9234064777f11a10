from portico.mrc.collators import FiDDataCollator as FiDDataCollator
from portico.mrc.features.labels import TargetType as TargetType
from portico.mrc.models.fusion_in_decoder import FID_HEAD as FID_HEAD
from portico.mrc.models.fusion_in_decoder import FiDModelForDownstreamTasks as FiDModelForDownstreamTasks
from portico.mrc.models.heads import EXTRACTIVE_HEAD as EXTRACTIVE_HEAD
from portico.mrc.models.heads import EXTRACTIVE_WITH_CONFIDENCE_HEAD as EXTRACTIVE_WITH_CONFIDENCE_HEAD
from portico.mrc.models.heads import ExtractiveQAHead as ExtractiveQAHead
from portico.mrc.models.heads import ExtractiveQAModelOutput as ExtractiveQAModelOutput
from portico.mrc.models.heads import ExtractiveQAWithConfidenceHead as ExtractiveQAWithConfidenceHead
from portico.mrc.models.heads import (
    ExtractiveQAWithConfidenceModelOutput as ExtractiveQAWithConfidenceModelOutput,
)
from portico.mrc.models.task_model import ModelForDownstreamTasks as ModelForDownstreamTasks
from portico.mrc.multi_source import IndividualDomainBatchSampler as IndividualDomainBatchSampler
from portico.mrc.postprocess.ranking import SupportedSpanScorers as SupportedSpanScorers
from portico.mrc.postprocess.ranking import initialize_scorer as initialize_scorer
from portico.mrc.primeqa.confidence import ConfidenceScorer as ConfidenceScorer
from portico.mrc.primeqa.confidence import ScoreNormalizer as ScoreNormalizer
from portico.mrc.primeqa.metrics import MLQA as MLQA
from portico.mrc.primeqa.metrics import NQF1 as NQF1
from portico.mrc.primeqa.metrics import ROUGE as ROUGE
from portico.mrc.primeqa.metrics import SQUAD as SQUAD
from portico.mrc.primeqa.metrics import TyDiF1 as TyDiF1
from portico.mrc.primeqa.postprocessors import AbstractPostProcessor as AbstractPostProcessor
from portico.mrc.primeqa.postprocessors import ELI5FiDPostProcessor as ELI5FiDPostProcessor
from portico.mrc.primeqa.postprocessors import EvalPredictionWithProcessing as EvalPredictionWithProcessing
from portico.mrc.primeqa.postprocessors import (
    ExtractivePipelinePostProcessor as ExtractivePipelinePostProcessor,
)
from portico.mrc.primeqa.postprocessors import ExtractivePostProcessor as ExtractivePostProcessor
from portico.mrc.primeqa.postprocessors import (
    NaturalQuestionsPostProcessor as NaturalQuestionsPostProcessor,
)
from portico.mrc.primeqa.postprocessors import SQUADPostProcessor as SQUADPostProcessor
from portico.mrc.primeqa.preprocessors import AbstractPreProcessor as AbstractPreProcessor
from portico.mrc.primeqa.preprocessors import BasePreProcessor as BasePreProcessor
from portico.mrc.primeqa.preprocessors import ELI5FiDPreprocessor as ELI5FiDPreprocessor
from portico.mrc.primeqa.preprocessors import MRQAPreprocessor as MRQAPreprocessor
from portico.mrc.primeqa.preprocessors import NaturalQuestionsPreProcessor as NaturalQuestionsPreProcessor
from portico.mrc.primeqa.preprocessors import SQUADPreprocessor as SQUADPreprocessor
from portico.mrc.primeqa.preprocessors import SubsampleType as SubsampleType
from portico.mrc.primeqa.preprocessors import TyDiBoolQAPreprocessor as TyDiBoolQAPreprocessor
from portico.mrc.primeqa.preprocessors import TyDiQAGooglePreprocessor as TyDiQAGooglePreprocessor
from portico.mrc.primeqa.preprocessors import TyDiQAPreprocessor as TyDiQAPreprocessor
from portico.mrc.primeqa.reader import ExtractiveReader as ExtractiveReader
from portico.mrc.primeqa.trainers import MRCSeq2SeqTrainer as MRCSeq2SeqTrainer
from portico.mrc.primeqa.trainers import MSKD_MRCTrainer as MSKD_MRCTrainer
from portico.mrc.trainer import MRCTrainer as MRCTrainer
