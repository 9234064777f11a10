"""What kind of answer the model's answer-type logits speak for.

Shape suffixes: E examples, F features (windows) grouped by example, K answer types.
"""

import numpy as np

from portico.mrc.arrays import Floats, Int64s
from portico.mrc.features.labels import TargetType


def answer_types(type_logits_FK: Floats, example_F: Int64s) -> Int64s:
    """Return the kind of answer of every example, ``int64 [E]``: a span, a whole passage, yes or no.

    The window with the lowest probability of ``NO_ANSWER`` decides, the first of equal ones. Whether there is an
    answer at all is not decided here but by the score of "no answer".

    Args:
        type_logits_FK: Scores of the answer types, ``float [F, K]``; where ``K`` is 0, all answers are spans.
        example_F: The example of each feature, ``int64 [F]``: ascending, none left out.
    """
    first_E = np.flatnonzero(np.diff(example_F, prepend=-1))
    if type_logits_FK.shape[1] == 0:
        return np.full(len(first_E), TargetType.SPAN_ANSWER, np.int64)
    logits_FK = type_logits_FK.astype(np.float64)
    evidence_FK = np.delete(logits_FK, TargetType.NO_ANSWER, axis=1)
    peak_F = evidence_FK.max(axis=1)
    evidence_F = (
        peak_F + np.log(np.exp(evidence_FK - peak_F[:, None]).sum(axis=1)) - logits_FK[:, TargetType.NO_ANSWER]
    )
    most = np.flatnonzero(evidence_F == np.maximum.reduceat(evidence_F, first_E)[example_F])
    window_E = most[np.searchsorted(most, first_E)]
    type_E = logits_FK[window_E].argmax(axis=1)
    return np.where(type_E == TargetType.NO_ANSWER, TargetType.SPAN_ANSWER, type_E)
