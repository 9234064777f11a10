"""The outputs of a reader for a batch, told apart by number and shape.

Shape suffixes: B features of the batch, L tokens of its longest row, K answer types.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from portico.errors import InputError
from portico.mrc.arrays import Floats, Int64s
from portico.mrc.features.labels import TargetType


@dataclass(frozen=True, eq=False)
class ReaderOutputs:
    """What a model with an extractive head says about a batch.

    Attributes:
        start_logits_BL: Score of each token as a start, ``float16``, ``float32`` or ``float64 [B, L]``.
        end_logits_BL: Score of each token as an end, of the same shape and dtype.
        type_logits_BK: Score of each answer type, ``[B, K]``; ``K`` is 0 where the model gives none.
        start_deviations_BL: Standard deviation of each start logit, ``[B, L]``, or ``[B, 0]``.
        end_deviations_BL: Standard deviation of each end logit, ``[B, L]``, or ``[B, 0]``.
        similarity_B1: Similarity of question and passage, ``[B, 1]``, or ``[B, 0]``.
    """

    start_logits_BL: Floats
    end_logits_BL: Floats
    type_logits_BK: Floats
    start_deviations_BL: Floats
    end_deviations_BL: Floats
    similarity_B1: Floats

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> "ReaderOutputs":
        """Take the outputs of a model in the order in which it gives them.

        Args:
            arrays: Start and end logits, then perhaps the logits of the answer types, then perhaps start deviations,
                end deviations and similarities. Of other outputs (hidden states) nothing is kept.

        Raises:
            InputError: If start and end logits are missing or differ in shape, or come from a beam-search head.
        """
        start_logits, end_logits, *others = (np.asarray(array) for array in _at_least_two(arrays))
        _check_shapes(start_logits, end_logits)
        none = np.zeros((len(start_logits), 0), start_logits.dtype)
        has_types = bool(others) and others[0].shape == (len(start_logits), len(TargetType))
        if not has_types:
            return cls(start_logits, end_logits, none, none, none, none)
        if len(others) < 4 or others[1].shape != start_logits.shape:
            return cls(start_logits, end_logits, others[0], none, none, none)
        types, start_deviations, end_deviations, similarity = others[:4]
        return cls(start_logits, end_logits, types, start_deviations, end_deviations, similarity.reshape(-1, 1))

    def check_finite(self, feature_indices_B: Int64s) -> None:
        """Refuse scores that cannot be ranked.

        Raises:
            InputError: Names the first feature and token whose logit is not finite.
        """
        for name, logits in (("start", self.start_logits_BL), ("end", self.end_logits_BL)):
            _check_finite(f"{name} logit", "token", logits, feature_indices_B)
        _check_finite("answer type's logit", "type", self.type_logits_BK, feature_indices_B)


def _at_least_two(arrays: Sequence[Any]) -> Sequence[Any]:
    if len(arrays) < 2:
        raise InputError(
            f"The model gave {len(arrays)} arrays, but answers need its start logits and its end logits, in this "
            "order; use a model with a question answering head."
        )
    return arrays


def _check_shapes(start_logits: Floats, end_logits: Floats) -> None:
    if start_logits.shape != end_logits.shape or not np.issubdtype(end_logits.dtype, np.floating):
        raise InputError(
            f"Start logits of shape {start_logits.shape} came with end logits of shape {end_logits.shape} and dtype "
            f"{end_logits.dtype}; both must be floating-point arrays of one shape, a row a feature. The outputs of a "
            "beam-search head (XLNet, XLM) are taken by mode='beam_search'."
        )


def _check_finite(name: str, column: str, logits: Floats, feature_indices_B: Int64s) -> None:
    if np.isfinite(logits).all():
        return
    row, place = np.argwhere(~np.isfinite(logits))[0]
    raise InputError(
        f"The {name} of feature {feature_indices_B[row]} at {column} {place} is {logits[row, place]}; answers can "
        "only be ranked by finite logits. See whether training diverged, or evaluate in a wider dtype (float32)."
    )
