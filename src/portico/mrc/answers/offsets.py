"""Where the tokens of every window lie in its context.

Shape suffixes: F features (windows), T tokens of all windows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from portico.errors import InputError
from portico.mrc.arrays import Int32s, Int64s
from portico.mrc.features.feature_set import FeatureSet

_OUTSIDE = (-1, -1)


@dataclass(frozen=True, eq=False)
class TokenOffsets:
    """What post-processing must know of the features.

    Attributes:
        example_index_F: The example each feature was cut from, ``int64 [F]``.
        row_starts: Where each feature begins in the flat arrays, and where the last ends, ``int64 [F + 1]``.
        char_offsets_T2: First character a span may begin with at each token and the one after the last it may end
            with, ``int32 [T, 2]``; -1 where it may not.
    """

    example_index_F: Int64s
    row_starts: Int64s
    char_offsets_T2: Int32s


def token_offsets(features: FeatureSet | Sequence[Mapping[str, Any]], example_ids: Sequence[str]) -> TokenOffsets:
    """Read the offsets off evaluation features.

    Args:
        features: From `Featurizer.eval_features`, or rows as the QA example of transformers makes them: mappings with
            ``example_id``, ``offset_mapping`` and perhaps ``token_is_max_context``.
        example_ids: Identifiers of the examples.

    Raises:
        InputError: If a feature belongs to none of the examples.
    """
    if isinstance(features, FeatureSet):
        assert features.char_offsets is not None, "post-processing needs evaluation features"
        return TokenOffsets(features.example_index, features.row_starts, features.char_offsets)
    index = {example_id: e for e, example_id in enumerate(example_ids)}
    examples: list[int] = []
    lengths: list[int] = []
    offsets: list[tuple[int, int]] = []
    for f, feature in enumerate(features):
        if feature["example_id"] not in index:
            raise InputError(
                f"Feature {f} has example_id {feature['example_id']!r}, which none of the {len(index)} examples has; "
                f"give the examples that the features were made of."
            )
        examples.append(index[feature["example_id"]])
        row = _row_offsets(feature)
        lengths.append(len(row))
        offsets.extend(row)
    return TokenOffsets(
        np.array(examples, np.int64), np.cumsum([0, *lengths]), np.array(offsets, np.int32).reshape(-1, 2)
    )


def _row_offsets(feature: Mapping[str, Any]) -> list[tuple[int, int]]:
    row = [tuple(pair) if pair else _OUTSIDE for pair in feature["offset_mapping"]]
    max_context = feature.get("token_is_max_context")
    if max_context is not None:
        # A span may begin only in the window that gives its first token the most context.
        row = [(begin if max_context.get(str(t), False) else -1, end) for t, (begin, end) in enumerate(row)]
    return row
