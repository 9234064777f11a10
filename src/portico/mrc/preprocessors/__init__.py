"""PrimeQA's preprocessors: data sets to the base schema, and on to features."""

from portico.mrc.features.subsampling import SubsampleType
from portico.mrc.preprocessors.abstract import AbstractPreProcessor
from portico.mrc.preprocessors.base import BasePreProcessor
from portico.mrc.preprocessors.eli5_fid import ELI5FiDPreprocessor
from portico.mrc.preprocessors.mrqa import MRQAPreprocessor
from portico.mrc.preprocessors.natural_questions import NaturalQuestionsPreProcessor
from portico.mrc.preprocessors.squad import SQUADPreprocessor
from portico.mrc.preprocessors.tydi_boolqa import TyDiBoolQAPreprocessor
from portico.mrc.preprocessors.tydiqa import TyDiQAGooglePreprocessor, TyDiQAPreprocessor

__all__ = [
    "AbstractPreProcessor",
    "BasePreProcessor",
    "ELI5FiDPreprocessor",
    "MRQAPreprocessor",
    "NaturalQuestionsPreProcessor",
    "SQUADPreprocessor",
    "SubsampleType",
    "TyDiBoolQAPreprocessor",
    "TyDiQAGooglePreprocessor",
    "TyDiQAPreprocessor",
]
