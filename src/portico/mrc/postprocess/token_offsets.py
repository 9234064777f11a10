"""The parts of examples and features that post-processing reads: contexts, and the places of tokens in them.

Shape suffixes: E examples, F features (windows), T tokens of all windows, n tokens looked up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from portico.errors import InputError
from portico.mrc.arrays import Int32s, Int64s, Tokens
from portico.mrc.datasets.examples import Examples, arrow_column, arrow_view, column
from portico.mrc.features.windows import FeatureSet

if TYPE_CHECKING:
    from datasets import Dataset

Passages: TypeAlias = Sequence[Mapping[str, Sequence[int]]]
"""Characters ``[start, end)`` of each example's passages, as ``start_positions`` and ``end_positions``."""


LITERAL_EMPTY = -1
"""Start and end of the span that represents the literal text "empty"."""


class ExampleColumns:
    """The columns of the examples that post-processing reads.

    They are ``id`` (or PrimeQA's ``example_id``), ``context``, a string or a list of strings, and optionally
    ``passage_candidates``.

    Raises:
        InputError: If there are no examples, or two have the same identifier.
    """

    def __init__(self, examples: Examples) -> None:
        if not len(examples):
            raise InputError("There are no examples to answer; give at least one question with its context.")
        self._examples: Any = arrow_view(examples) if hasattr(examples, "with_format") else examples
        self._names = getattr(examples, "column_names", None) or examples[0]
        self.ids: list[str] = column(examples, "id" if "id" in self._names else "example_id")
        if len(set(self.ids)) < len(self.ids):
            repeated = [example_id for example_id, count in Counter(self.ids).items() if count > 1]
            raise InputError(
                f"{len(repeated)} example ids occur more than once, for example {repeated[0]!r}; answers are stored "
                "by id, so give every example a unique one."
            )

    def texts(self, example_N: Int64s, context_N: Int64s, chars_N2: Int32s) -> list[str]:
        """Return the texts of ``N`` spans at characters ``[start, end)``, each in a context of its example."""
        contexts, first_E = self._contexts
        starts, ends = chars_N2.T.tolist()
        places = zip((first_E[example_N] + context_N).tolist(), starts, ends, strict=True)
        texts = [contexts[context][start:end] for context, start, end in places]
        for n in np.flatnonzero(chars_N2[:, 0] == LITERAL_EMPTY).tolist():
            texts[n] = "empty"
        return texts

    @cached_property
    def _contexts(self) -> tuple[list[str], Int64s]:
        """The contexts of all examples, and which is the first of each, ``int64 [E]``."""
        contexts = column(self._examples, "context")
        if set(map(type, contexts)) == {str}:
            return contexts, np.arange(len(contexts))
        listed = [[context] if isinstance(context, str) else context for context in contexts]
        return [*chain.from_iterable(listed)], np.cumsum([0, *map(len, listed[:-1])])

    @cached_property
    def passages(self) -> Passages | None:
        """The passages of each example's document; ``None`` if the examples have none."""
        return column(self._examples, "passage_candidates") if "passage_candidates" in self._names else None


@dataclass(frozen=True, eq=False)
class TokenOffsets:
    """Which example and context each feature belongs to, and which characters its tokens cover.

    Args:
        example_index_F: The example each feature was cut from, ``int64 [F]``.
        row_starts: Index of the first token of each feature, then the number of tokens, ``int64 [F + 1]``.
        char_offsets_T2: First character and the character after the last of each token, ``int [T, 2]``; -1 where no
            answer may begin or end. With ``pair_starts``, it has only the tokens that have characters.
        context_index_F: Which of the example's contexts each feature shows, ``int64 [F]``.
        pair_starts: Index of each token's pair in the flat ``char_offsets_T2``, then the length of that array, ``int32
            [T + 1]``; a token with the same index as the next has no characters. ``None`` if each token has a pair.
        null_token_F: The token of each feature that represents "no answer", ``int64 [F]``; ``None``: token 0 of all.
    """

    example_index_F: Int64s
    row_starts: Int64s
    char_offsets_T2: Tokens
    context_index_F: Int64s
    pair_starts: Int32s | None = None
    null_token_F: Int64s | None = None

    def __len__(self) -> int:
        return len(self.example_index_F)

    @property
    def lengths_F(self) -> Int64s:
        """Tokens of each feature, ``int64 [F]``."""
        return np.diff(self.row_starts)

    def begins(self, token_Fn: Tokens, feature_index_F: Int64s) -> Int32s:
        """Return the first character of tokens, ``int32 [F, n]``; -1 for those outside the context or the row.

        Tokens count from the start of their feature, -1 for none; ``feature_index_F`` is the feature of each row.
        """
        return self._chars(token_Fn, feature_index_F, 0)

    def ends(self, token_Fn: Tokens, feature_index_F: Int64s) -> Int32s:
        """Return the character after the last of tokens; see ``begins``."""
        return self._chars(token_Fn, feature_index_F, 1)

    def _chars(self, token_Fn: Tokens, feature_index_F: Int64s, side: int) -> Int32s:
        start_F1 = self.row_starts[feature_index_F, None]
        flat_Fn = start_F1 + token_Fn
        known_Fn = (token_Fn >= 0) & (flat_Fn < self.row_starts[feature_index_F + 1, None])
        if self.pair_starts is None:
            flat_Fn *= 2
        else:
            flat_Fn = np.where(known_Fn, flat_Fn, start_F1)
            first_Fn = self.pair_starts.take(flat_Fn)
            known_Fn &= first_Fn < self.pair_starts.take(flat_Fn + 1)
            flat_Fn = first_Fn
        chars = self.char_offsets_T2.reshape(-1)
        found_Fn = chars.take(np.where(known_Fn, flat_Fn + side, 0)) if len(chars) else -1
        return np.where(known_Fn, found_Fn, -1).astype(np.int32, copy=False)


Features: TypeAlias = FeatureSet | Sequence[Mapping[str, Any]]
"""Features from ``Featurizer.eval_features``, or rows with ``example_id`` and ``offset_mapping``."""


def token_offsets(features: Features, example_ids: Sequence[str]) -> TokenOffsets:
    """Read the offsets of evaluation features, from ``Featurizer.eval_features`` or as rows for ``offsets_of_rows``.

    Raises:
        InputError: If an example has no features, a feature belongs to none of the examples, or the features were
            made to train on.
    """
    if isinstance(features, FeatureSet):
        if features.char_offsets is None:
            raise InputError(
                "The features have no character offsets because they were made to train on; give features from "
                "`eval_features` (with `labels=True` to compute a loss as well)."
            )
        example_index_F = features.example_indices(example_ids)
        if example_index_F is None:
            example_index_F = _example_indices(features.example_id, example_ids)
        context_F = np.zeros_like(example_index_F) if features.context_index is None else features.context_index
        offsets = TokenOffsets(
            example_index_F,
            features.row_starts,
            features.char_offsets,
            context_F,
            null_token_F=features.null_token if features.null_token.any() else None,
        )
    else:
        features = arrow_view(features) if hasattr(features, "with_format") else features
        offsets = offsets_of_rows(features, _example_indices(column(features, "example_id"), example_ids))
    without = np.flatnonzero(np.bincount(offsets.example_index_F, minlength=len(example_ids)) == 0)
    if len(without):
        raise InputError(
            f"{len(without)} of {len(example_ids)} examples have no features, the first being "
            f"{example_ids[without[0]]!r}; give the features of exactly these examples. To shorten a run, cut the "
            "examples rather than the features."
        )
    return offsets


def offsets_of_rows(features: Sequence[Mapping[str, Any]], example_index_F: Int64s) -> TokenOffsets:
    """Read the offsets of rows that belong to these examples, ``int64 [F]``.

    A row has ``offset_mapping``, a pair of characters for each token or ``None`` outside the context, and optionally
    ``token_is_max_context`` and ``context_idx``. The columns of a ``datasets.Dataset`` are read from Arrow's memory
    without creating Python objects.
    """
    names = getattr(features, "column_names", None) or (features[0] if len(features) else ())
    is_arrow = hasattr(features, "with_format") and "token_is_max_context" not in names
    row_starts, *chars = (_arrow_offsets(features) if is_arrow else None) or _python_offsets(features)
    context_F = column(features, "context_idx") if "context_idx" in names else np.zeros_like(example_index_F)
    return TokenOffsets(example_index_F, row_starts, chars[0], np.array(context_F, np.int64), *chars[1:])


def _arrow_offsets(features: "Dataset") -> tuple[Int64s, Tokens, Int32s] | None:
    """Read the column of a ``datasets.Dataset`` without a copy; ``None`` if a value is not a pair."""
    rows = arrow_column(features, "offset_mapping")
    pairs = rows.flatten()
    pair_starts = pairs.offsets.to_numpy()
    counts_T = np.diff(pair_starts)
    num_pairs = np.count_nonzero(counts_T)
    are_pairs = counts_T.max(initial=0) <= 2 and pair_starts[-1] - pair_starts[0] == 2 * num_pairs
    # A null may hide values.
    if not are_pairs or num_pairs + pairs.null_count > len(pairs) or pairs.values.null_count:
        return None
    lengths_F = rows.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    values = pairs.values.to_numpy()[: len(pairs.values) // 2 * 2]
    return np.concatenate([[0], np.cumsum(lengths_F)]), values.reshape(-1, 2), pair_starts


def _python_offsets(features: Any) -> tuple[Int64s, Tokens]:
    lengths: list[int] = []
    offsets: list[tuple[int, int]] = []
    # Python objects, whatever a `datasets.Dataset` is set to return.
    for feature in features.with_format(None) if hasattr(features, "with_format") else features:
        row = [tuple(pair) if pair else (-1, -1) for pair in feature["offset_mapping"]]
        max_context = feature.get("token_is_max_context")
        if max_context is not None:
            # The QA example lets a span begin only in the window that gives its first token the most context.
            row = [(begin if max_context.get(str(t), False) else -1, end) for t, (begin, end) in enumerate(row)]
        lengths.append(len(row))
        offsets.extend(row)
    return np.cumsum([0, *lengths]), np.array(offsets, np.int32).reshape(-1, 2)


def _example_indices(ids_F: Sequence[str], example_ids: Sequence[str]) -> Int64s:
    index = {example_id: e for e, example_id in enumerate(example_ids)}
    example_F = np.fromiter(map(index.get, ids_F, repeat(-1)), np.int64, len(ids_F))
    if len(unknown := np.flatnonzero(example_F < 0)):
        feature = int(unknown[0])
        raise InputError(
            f"Feature {feature} has example_id {ids_F[feature]!r}, which none of the {len(index)} examples has; give "
            "the examples that the features were made from."
        )
    return example_F
