"""Where the tokens of every window lie in its context.

Shape suffixes: F features (windows), T tokens of all windows, n tokens looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from portico.errors import InputError
from portico.mrc.answers.offset_columns import offset_column
from portico.mrc.arrays import Int32s, Int64s, Tokens
from portico.mrc.datasets.examples import column
from portico.mrc.features.windows import FeatureSet


@dataclass(frozen=True, eq=False)
class TokenOffsets:
    """What post-processing must know of the features.

    Attributes:
        example_index_F: The example each feature was cut from, ``int64 [F]``.
        row_starts: Where each feature begins in the flat arrays, and where the last ends, ``int64 [F + 1]``.
        char_offsets_T2: First character a span may begin with at each token and the one after the last it may end
            with, ``int32 [T, 2]``; -1 where it may not.
        context_index_F: Which of the example's contexts each feature shows, ``int64 [F]``; by default the first.
    """

    example_index_F: Int64s
    row_starts: Int64s
    char_offsets_T2: Int32s
    context_index_F: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        if not len(self.context_index_F):
            object.__setattr__(self, "context_index_F", np.zeros_like(self.example_index_F))

    def __len__(self) -> int:
        return len(self.example_index_F)

    @property
    def lengths_F(self) -> Int64s:
        """Tokens of each feature, ``int64 [F]``."""
        return np.diff(self.row_starts)

    def chars(self, token_Fn: Tokens, feature_index_F: Int64s) -> Int32s:
        """Return the characters of tokens, ``int32 [F, n, 2]``; -1 for those outside the context or the row.

        Args:
            token_Fn: Token indices within their feature, -1 for none, ``[F, n]``.
            feature_index_F: The feature of each row, ``int64 [F]``.
        """
        start_F1 = self.row_starts[feature_index_F, None]
        flat_Fn = start_F1 + token_Fn
        in_row_Fn = (token_Fn >= 0) & (flat_Fn < self.row_starts[feature_index_F + 1, None])
        chars_Fn2 = self.char_offsets_T2[np.where(in_row_Fn, flat_Fn, start_F1)]
        return np.where(in_row_Fn[..., None], chars_Fn2, np.int32(-1))


Features: TypeAlias = FeatureSet | Sequence[Mapping[str, Any]] | TokenOffsets
"""Evaluation features: `Featurizer.eval_features`, rows with ``example_id`` and ``offset_mapping``, or what
post-processing must know of them."""


def token_offsets(features: Features, example_ids: Sequence[str]) -> TokenOffsets:
    """Read the offsets off evaluation features.

    Args:
        features: From `Featurizer.eval_features`, or rows as the QA example of transformers makes them: mappings with
            ``example_id``, ``offset_mapping`` and perhaps ``context_idx`` and ``token_is_max_context``.
        example_ids: Identifiers of the examples.

    Raises:
        InputError: If an example has no features, a feature belongs to none of the examples, or the features were
            made to train on.
    """
    if isinstance(features, TokenOffsets):
        offsets = features
    elif isinstance(features, FeatureSet):
        if features.char_offsets is None:
            raise InputError(
                "The features do not say where their tokens lie in the context, as they were made to train on; give "
                "features from `eval_features` (with `labels=True` for a loss)."
            )
        context_index_F = getattr(features, "context_index", None)
        example_index_F = _example_indices(features.example_id, example_ids)
        offsets = TokenOffsets(example_index_F, features.row_starts, features.char_offsets)
        offsets = offsets if context_index_F is None else replace(offsets, context_index_F=context_index_F)
    else:
        offsets = _offsets_of_rows(features, example_ids)
    _check_every_example_has_features(offsets, example_ids)
    return offsets


def _offsets_of_rows(features: Sequence[Mapping[str, Any]], example_ids: Sequence[str]) -> TokenOffsets:
    example_index_F = _example_indices(column(features, "example_id"), example_ids)
    return TokenOffsets(example_index_F, *offset_column(features), context_indices(features))


def _example_indices(ids_F: Sequence[str], example_ids: Sequence[str]) -> Int64s:
    """Return the example that each feature belongs to, ``int64 [F]``."""
    index = {example_id: e for e, example_id in enumerate(example_ids)}
    examples = [index.get(example_id, -1) for example_id in ids_F]
    if -1 in examples:
        feature = examples.index(-1)
        raise InputError(
            f"Feature {feature} has example_id {ids_F[feature]!r}, which none of the {len(index)} examples has; give "
            "the examples that the features were made of."
        )
    return np.array(examples, np.int64)


def context_indices(features: Sequence[Mapping[str, Any]]) -> Int64s:
    """Return which context each feature shows, ``int64 [F]``, or ``int64 [0]`` where the features do not say."""
    names = getattr(features, "column_names", None) or (features[0] if len(features) else ())
    return np.array(column(features, "context_idx") if "context_idx" in names else [], np.int64)


def _check_every_example_has_features(offsets: TokenOffsets, example_ids: Sequence[str]) -> None:
    counts_E = np.bincount(offsets.example_index_F, minlength=len(example_ids))
    without = np.flatnonzero(counts_E == 0)
    if len(without):
        raise InputError(
            f"{len(without)} of {len(counts_E)} examples have no features, {example_ids[without[0]]!r} being the "
            f"first; give the features of just these examples, and cut examples rather than features."
        )
