"""What is kept of the outputs of every feature: the tokens that can begin or end an answer.

Shape suffixes: F features (windows), n tokens kept, K answer types.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from portico.mrc.arrays import Bools, Floats, Int64s, Tokens


@dataclass(frozen=True, eq=False)
class TopTokens:
    """The best tokens of every feature, as starts or as ends.

    Attributes:
        token_Fn: Token indices, best first, -1 where a row has fewer than ``n``, ``int16`` or ``int32 [F, n]``.
        logit_Fn: Their logits in the dtype they came in, ``[F, n]``.
        null_F: Logit of token 0, which stands for "no answer", ``[F]``.
        deviation_Fn: Standard deviations of the logits, ``[F, n]``, or ``[F, 0]`` where the model gives none.
    """

    token_Fn: Tokens
    logit_Fn: Floats
    null_F: Floats
    deviation_Fn: Floats

    def __getitem__(self, features: Int64s | Bools | slice) -> "TopTokens":
        return TopTokens(*(getattr(self, field.name)[features] for field in fields(self)))

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take, in bytes."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    @staticmethod
    def concatenate(parts: "Sequence[TopTokens]") -> "TopTokens":
        """Return the rows of all parts."""
        names = [field.name for field in fields(TopTokens)]
        return TopTokens(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False)
class Candidates:
    """What is kept of some features, and what processes exchange instead of logits.

    Attributes:
        feature_index_F: Which features, ``int64 [F]``.
        starts: Their best start tokens.
        ends: Their best end tokens.
        type_logits_FK: Scores of the answer types (:class:`~portico.mrc.features.labels.TargetType`), ``[F, K]``; ``K``
            is 0 where the model gives none.
        similarity_F1: Similarity of question and passage, ``[F, 1]``, or ``[F, 0]`` where the model gives none.
        paired: Whether start ``i`` belongs to end ``i`` alone; otherwise every start may go with every end.
    """

    feature_index_F: Int64s
    starts: TopTokens
    ends: TopTokens
    type_logits_FK: Floats
    similarity_F1: Floats
    paired: bool

    def __getitem__(self, features: Int64s | Bools | slice) -> "Candidates":
        return Candidates(
            self.feature_index_F[features],
            self.starts[features],
            self.ends[features],
            self.type_logits_FK[features],
            self.similarity_F1[features],
            self.paired,
        )

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take, in bytes."""
        return (
            self.feature_index_F.nbytes
            + self.starts.nbytes
            + self.ends.nbytes
            + self.type_logits_FK.nbytes
            + self.similarity_F1.nbytes
        )

    @staticmethod
    def concatenate(parts: "Sequence[Candidates]") -> "Candidates":
        """Return the rows of all parts, at least one, which must have been searched in the same way."""
        return Candidates(
            np.concatenate([part.feature_index_F for part in parts]),
            TopTokens.concatenate([part.starts for part in parts]),
            TopTokens.concatenate([part.ends for part in parts]),
            np.concatenate([part.type_logits_FK for part in parts]),
            np.concatenate([part.similarity_F1 for part in parts]),
            parts[0].paired,
        )
