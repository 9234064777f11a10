"""``ORTMRCTrainer``: readers trained and evaluated in ONNX Runtime."""

from portico.mrc.multi_source import MultiSourceMRCTrainer
from portico.mrc.trainer import MRCTrainer
from portico.ort.trainer import ORTMixin
from portico.trust.names import data_only


@data_only
class ORTMRCTrainer(ORTMixin, MRCTrainer):
    """``MRCTrainer`` in ONNX Runtime."""

    # Several sources and teachers only need the strategy, which runs the model of any trainer in ONNX Runtime.
    multi_source_class = MultiSourceMRCTrainer
