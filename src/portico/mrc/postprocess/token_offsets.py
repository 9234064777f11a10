"""Where the tokens of every window lie in its context.

Shape suffixes: F features (windows), T tokens of all windows, n tokens looked at.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from portico.errors import InputError
from portico.mrc.arrays import Int32s, Int64s, Tokens
from portico.mrc.columns import Examples, arrow_column, column
from portico.mrc.features.feature_set import FeatureSet


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


_OUTSIDE = (-1, -1)


def offset_column(features: Sequence[Mapping[str, Any]]) -> tuple[Int64s, Int32s]:
    """Return where each row begins and where the last ends, ``int64 [F + 1]``, and the offsets, ``int32 [T, 2]``.

    Args:
        features: Mappings with ``offset_mapping``, a pair of characters a token or ``None`` outside the context, and
            perhaps ``token_is_max_context``; a list, or a ``datasets.Dataset``, whose column is not made into Python
            objects.
    """
    names = getattr(features, "column_names", ())
    is_arrow = hasattr(features, "with_format") and "token_is_max_context" not in names
    read = _of_arrow(features) if is_arrow else None
    return read or _of_rows(features)


def _of_arrow(features: Any) -> tuple[Int64s, Int32s] | None:
    """Read the column of a data set; ``None`` if a value is no pair."""
    rows = arrow_column(features, "offset_mapping")
    pairs = rows.flatten()
    counts_T = pairs.value_lengths().fill_null(0).to_numpy()
    is_pair_T = counts_T == 2
    if not (is_pair_T | (counts_T == 0)).all():
        return None
    chars = np.full(2 * len(counts_T), -1, np.int32)
    values = pairs.flatten().to_numpy(zero_copy_only=False).astype(np.int32)
    chars.view(np.int64)[is_pair_T] = values.view(np.int64)  # both characters at once: four times as fast as rows
    lengths_F = rows.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return np.concatenate([[0], np.cumsum(lengths_F)]), chars.reshape(-1, 2)


def _of_rows(features: Sequence[Mapping[str, Any]]) -> tuple[Int64s, Int32s]:
    lengths: list[int] = []
    offsets: list[tuple[int, int]] = []
    for feature in features:
        row = _row_offsets(feature)
        lengths.append(len(row))
        offsets.extend(row)
    return np.cumsum([0, *lengths]), np.array(offsets, np.int32).reshape(-1, 2)


def _row_offsets(feature: Mapping[str, Any]) -> list[tuple[int, int]]:
    row = [tuple(pair) if pair else _OUTSIDE for pair in feature["offset_mapping"]]
    max_context = feature.get("token_is_max_context")
    if max_context is not None:
        # A span may begin only in the window that gives its first token the most context.
        row = [(begin if max_context.get(str(t), False) else -1, end) for t, (begin, end) in enumerate(row)]
    return row


Passages = Sequence[Mapping[str, Sequence[int]]]
"""First characters (``start_positions``) and those after the last (``end_positions``) of each example's passages."""


@dataclass(frozen=True)
class Questions:
    """The examples to answer.

    Args:
        examples: With ``id`` (or PrimeQA's ``example_id``), ``context``, a text or a list of texts, and perhaps
            ``passage_candidates``.

    Raises:
        InputError: If two have the same identifier, or there are none.
    """

    examples: Examples

    def __post_init__(self) -> None:
        if not len(self.examples):
            raise InputError("There are no examples to answer; give at least one question with its context.")
        repeated = [example_id for example_id, count in Counter(self.ids).items() if count > 1]
        if repeated:
            raise InputError(
                f"{len(repeated)} example ids occur more than once, {repeated[0]!r} for one; answers are told apart "
                f"by id, so give every example its own."
            )

    @cached_property
    def ids(self) -> list[str]:
        """Identifiers of the examples."""
        return column(self.examples, "id" if self.has("id") else "example_id")

    @cached_property
    def contexts(self) -> list[Sequence[str]]:
        """The contexts of each example."""
        contexts = column(self.examples, "context")
        return [[context] if isinstance(context, str) else context for context in contexts]

    @cached_property
    def passages(self) -> Passages | None:
        """The passages of each example's document; ``None`` if the examples have none."""
        return column(self.examples, "passage_candidates") if self.has("passage_candidates") else None

    def has(self, name: str) -> bool:
        """Tell whether the examples have a column."""
        return name in (getattr(self.examples, "column_names", None) or self.examples[0])


def passage_indices(chars_N2: Int32s, example_N: Int64s, passages_E: Passages) -> Int64s:
    """Return the first passage of its example that holds the whole span, ``int64 [N]``, -1 for none.

    Args:
        chars_N2: Characters ``[start, end)`` of each span, ``int32 [N, 2]``.
        example_N: The example of each span, ``int64 [N]``, ascending.
        passages_E: The passages of every example.
    """
    counts_E = np.array([len(passages["start_positions"]) for passages in passages_E], np.int64)
    starts, ends = (
        np.array([position for passages in passages_E for position in passages[name]], np.int64)
        for name in ("start_positions", "end_positions")
    )
    first_E = np.cumsum(counts_E) - counts_E
    span_M = np.repeat(np.arange(len(example_N)), counts_E[example_N])
    first_N = np.cumsum(counts_E[example_N]) - counts_E[example_N]
    passage_M = np.arange(len(span_M)) - first_N[span_M]
    flat_M = first_E[example_N[span_M]] + passage_M
    holds_M = (starts[flat_M] <= chars_N2[span_M, 0]) & (chars_N2[span_M, 1] <= ends[flat_M])
    index_N = np.full(len(example_N), -1, np.int64)
    # Assigned from the last to the first, so that of several passages the first stays.
    index_N[span_M[holds_M][::-1]] = passage_M[holds_M][::-1]
    return index_N
