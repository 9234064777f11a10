"""Takes the outputs of evaluation batches, keeps what answers are made of, and finds out whether any are missing.

Shape suffixes: F features (windows), B features of one batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.answers.candidates import Candidates
from portico.mrc.answers.offsets import TokenOffsets
from portico.mrc.arrays import Int64s

Keep: TypeAlias = Callable[[Sequence[Any], Int64s], Candidates]
"""``f(outputs, feature_indices_B)``: what to keep of the outputs of a batch."""


class SpanCollector:
    """Keeps the candidates of each feature.

    That is about 260 bytes a feature for 20 starts and ends in float32, however long its row.

    Args:
        offsets: The features of the whole evaluation set.
        keep: Says what to keep of a batch.
    """

    def __init__(self, offsets: TokenOffsets, keep: Keep) -> None:
        self._offsets = offsets
        self._keep = keep
        self._num_features = len(offsets.example_index_F)
        self._parts: list[Candidates] = []

    def update(self, outputs: Sequence[Any], feature_indices: npt.ArrayLike) -> None:
        """Take one batch.

        Args:
            outputs: What the model gives, arrays of a row a feature.
            feature_indices: Which feature each row is, ``int [B]``, in any order; of a feature that comes twice (a
                distributed sampler repeats some) the first counts.

        Raises:
            InputError: If a logit is not finite, or the rows are more or fewer than the features they belong to.
        """
        indices_B = np.asarray(feature_indices, np.int64)
        if isinstance(outputs, np.ndarray):
            raise InputError(
                f"The model gave an array of shape {outputs.shape}, but answers need several, start logits and end "
                "logits first; use a model with a question answering head."
            )
        num_rows = len(outputs[0]) if len(outputs) else 0
        if indices_B.shape != (num_rows,):
            raise InputError(
                f"There are logits for {num_rows} features, but {len(indices_B)} features; give the features that the "
                f"model was evaluated on."
            )
        if num_rows and not 0 <= indices_B.min() <= indices_B.max() < self._num_features:
            raise InputError(
                f"There are logits for feature {indices_B.max()}, but {self._num_features} features, counted from 0; "
                f"give the features that the model was evaluated on."
            )
        if num_rows:
            self._parts.append(self._keep(outputs, indices_B))

    def merge(self, candidates: Candidates) -> None:
        """Take what the collector of another process kept."""
        self._parts.append(candidates)

    def candidates(self) -> Candidates:
        """Return what was kept, one row a feature, in ascending order of the features.

        Raises:
            InputError: If no logits came at all.
        """
        if not self._parts:
            raise InputError(
                f"None of the {self._num_features} features got logits; evaluate the model on all of them before "
                f"asking for answers."
            )
        together = Candidates.concatenate(self._parts)
        first_F = np.unique(together.feature_index_F, return_index=True)[1]
        return together[first_F]

    def complete(self) -> Candidates:
        """Return the candidates of all features, in the order of their examples.

        Raises:
            InputError: If a feature got no logits.
        """
        candidates = self.candidates()
        missing = np.setdiff1d(np.arange(self._num_features), candidates.feature_index_F)
        if len(missing):
            raise InputError(
                f"{len(missing)} of {self._num_features} features got no logits, feature {missing[0]} being the "
                f"first; evaluate the model on all of them before asking for answers."
            )
        return candidates[np.argsort(self._offsets.example_index_F, kind="stable")]
