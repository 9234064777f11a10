"""Features that stand in the order of their examples.

Shape suffixes: E examples, F features (windows).
"""

import numpy as np

from portico.errors import InputError, InputStopIteration
from portico.mrc.answers.offset_columns import offset_column
from portico.mrc.answers.offsets import Features, TokenOffsets, context_indices, token_offsets
from portico.mrc.answers.questions import Questions
from portico.mrc.arrays import Int64s
from portico.mrc.datasets.examples import column
from portico.mrc.features.windows import FeatureSet


def grouped_offsets(features: Features, questions: Questions) -> TokenOffsets:
    """Read the offsets off features that stand one example after the other.

    Args:
        features: With ``example_idx``, which tells features of one example from those of the next, and
            ``offset_mapping``; or from `Featurizer.eval_features`.
        questions: The examples, in the order of the features.

    Raises:
        InputError: If the features of an example do not follow each other, there are more or fewer groups than
            examples, or a group belongs to another example.
        InputStopIteration: If there are fewer groups than examples.
    """
    if isinstance(features, FeatureSet | TokenOffsets):
        return token_offsets(features, questions.ids)
    if not len(features):
        raise InputError(f"There are {len(questions.ids)} examples but no features of them; give their features.")
    example_F = _group_numbers(np.array(column(features, "example_idx"), np.int64), len(questions.ids))
    names = getattr(features, "column_names", None) or features[0]
    if "example_id" in names:
        _check_ids(column(features, "example_id"), example_F, questions.ids)
    return TokenOffsets(example_F, *offset_column(features), context_indices(features))


def _group_numbers(example_idx_F: Int64s, num_examples: int) -> Int64s:
    starts = np.flatnonzero(np.diff(example_idx_F, prepend=example_idx_F[0] - 1))
    values, counts = np.unique(example_idx_F[starts], return_counts=True)
    if (counts > 1).any():
        value = values[counts > 1][0]
        raise InputError(
            f"The features are not grouped: those with example_idx {value} stand in {counts[counts > 1][0]} places. "
            "Keep features in the order in which they were made, the features of one example after another."
        )
    if len(starts) != num_examples:
        # PrimeQA takes the features of one example after another until none are left.
        error = InputStopIteration if len(starts) < num_examples else InputError
        raise error(
            f"There are {num_examples} examples, but features of {len(starts)}; give the features of just these "
            "examples, at least one of each, and cut examples rather than features."
        )
    return np.repeat(np.arange(len(starts)), np.diff(starts, append=len(example_idx_F)))


def _check_ids(ids_F: list[str], example_F: Int64s, ids: list[str]) -> None:
    for feature, (example_id, example) in enumerate(zip(ids_F, example_F.tolist(), strict=True)):
        if example_id != ids[example]:
            raise InputError(
                f"Feature {feature} has example_id {example_id!r} where example {ids[example]!r} comes next; give "
                "examples and features in the same order."
            )
