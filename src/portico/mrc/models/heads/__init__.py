"""What stands on an encoder: spans with answer types, with confidence, or searched by beams.

The dictionaries are what :meth:`~portico.mrc.models.task_model.ModelForDownstreamTasks.from_config` takes as
``task_heads``: classes by the name of the head.
"""

from collections.abc import Mapping

from portico.mrc.models.heads.beam_search import BeamSearchQAHead
from portico.mrc.models.heads.confidence import ExtractiveQAWithConfidenceHead
from portico.mrc.models.heads.extractive import ExtractiveQAHead
from portico.mrc.models.heads.task_head import TaskHead

EXTRACTIVE_HEAD: Mapping[str, type[TaskHead]] = {"qa_head": ExtractiveQAHead}
EXTRACTIVE_WITH_CONFIDENCE_HEAD: Mapping[str, type[TaskHead]] = {"qa_head": ExtractiveQAWithConfidenceHead}
BEAM_SEARCH_HEAD: Mapping[str, type[TaskHead]] = {"qa_head": BeamSearchQAHead}

HEAD_CLASSES: Mapping[str, type[TaskHead]] = {
    head.__name__: head for head in (ExtractiveQAHead, ExtractiveQAWithConfidenceHead, BeamSearchQAHead)
}
"""The heads that a saved model is read with, by the names its configuration holds."""
