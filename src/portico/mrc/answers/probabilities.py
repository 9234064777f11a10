import numpy as np
import numpy.typing as npt

from portico.mrc.answers.span_table import RankedSpans
from portico.mrc.arrays import Bools


def span_probabilities(
    ranked: RankedSpans, wide_E: Bools | None = None, temperature: float = 1.0
) -> npt.NDArray[np.float64]:
    """Return the softmax of the scores over the spans of each example, ``float64 [N]``.

    Examples with equally many spans are computed as one array: a sum over its rows adds in the same order as a sum
    over each row alone, so that the result does not depend on how examples are put together.

    Args:
        ranked: The spans.
        wide_E: Examples to compute in float64 and not in the dtype of their logits, ``bool [E]``.
        temperature: What the scores are divided by; more than 1 levels them.
    """
    wide_E = np.zeros(len(ranked.counts_E), np.bool_) if wide_E is None else wide_E
    score_N = ranked.spans.score_N if temperature == 1 else ranked.spans.score_N / temperature
    probability_N = np.empty(len(ranked.spans), np.float64)
    for wide in (False, True):
        for count in np.unique(ranked.counts_E[wide_E == wide]):
            rows = np.flatnonzero((ranked.counts_E == count) & (wide_E == wide))
            spans = ranked.row_starts[rows, None] + np.arange(count)
            if count > 0:
                score = score_N[spans]
                score = score.astype(np.float64) if wide else score
                weight = np.exp(score - score.max(axis=1, keepdims=True))
                probability_N[spans] = weight / weight.sum(axis=1, keepdims=True)
    return probability_N
