"""What every post-processing does while an evaluation runs."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from portico.mrc.answers.candidates import Candidates
from portico.mrc.answers.collector import SpanCollector


class OutputStream:
    """Takes the outputs of batches, in one process or several.

    Args:
        collector: Keeps what answers are made of.
    """

    def __init__(self, collector: SpanCollector) -> None:
        self._collector = collector

    def update_outputs(self, outputs: Sequence[Any], feature_indices: npt.ArrayLike) -> None:
        """Take the outputs of the model for one batch, in the order in which it gives them.

        Args:
            outputs: Arrays with a row a feature.
            feature_indices: Which feature each row is, ``int [B]``; see `SpanCollector.update`.

        Raises:
            InputError: See `SpanCollector.update`.
        """
        self._collector.update(outputs, feature_indices)

    def candidates(self) -> Candidates:
        """Return what was kept so far, for another process to `merge`."""
        return self._collector.candidates()

    def merge(self, candidates: Candidates) -> None:
        """Take what another process kept."""
        self._collector.merge(candidates)
