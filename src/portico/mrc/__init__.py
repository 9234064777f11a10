"""Machine reading comprehension: examples, features, answers, metrics, report."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.mrc.answers import Answers as Answers
    from portico.mrc.answers import SpanPostProcessor as SpanPostProcessor
    from portico.mrc.answers import postprocess_qa_predictions as postprocess_qa_predictions
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
    from portico.mrc.post_processing import SpanPostProcessing as SpanPostProcessing
    from portico.mrc.post_processing import SquadMetrics as SquadMetrics
    from portico.mrc.readers import read_examples as read_examples
    from portico.mrc.readers import read_squad as read_squad
    from portico.mrc.trainer import MRCTrainer as MRCTrainer

_HOMES = {
    "Answers": "portico.mrc.answers",
    "FeatureSet": "portico.mrc.features.feature_set",
    "Featurizer": "portico.mrc.features.featurizer",
    "MRCTrainer": "portico.mrc.trainer",
    "Mlqa": "portico.mrc.metrics",
    "Mrqa": "portico.mrc.metrics",
    "NqF1": "portico.mrc.metrics",
    "Rouge": "portico.mrc.metrics",
    "SpanPostProcessing": "portico.mrc.post_processing",
    "SpanPostProcessor": "portico.mrc.answers",
    "SquadMetrics": "portico.mrc.post_processing",
    "SquadV1": "portico.mrc.metrics",
    "SquadV2": "portico.mrc.metrics",
    "TydiF1": "portico.mrc.metrics",
    "postprocess_qa_predictions": "portico.mrc.answers",
    "read_examples": "portico.mrc.readers",
    "read_squad": "portico.mrc.readers",
    "squad_metrics": "portico.mrc.metrics",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
