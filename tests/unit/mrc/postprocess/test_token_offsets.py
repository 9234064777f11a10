import datasets
import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc import SpanPostProcessor, postprocess_qa_predictions
from portico.mrc.postprocess.token_offsets import token_offsets

IDS = [f"id {e}" for e in range(5)]
EXAMPLES = [{"id": example_id, "context": "x y"} for example_id in IDS]
ROWS = [{"example_id": example_id, "offset_mapping": [None, (0, 1), (2, 3)]} for example_id in IDS]


@pytest.mark.parametrize("select", [False, True])
def test_offsets_of_a_dataset_equal_those_of_its_rows(select):
    rng = np.random.default_rng(0)
    rows = [
        {
            "example_id": IDS[f % 5],
            "context_idx": f % 3,
            "offset_mapping": [None if rng.random() < 0.3 else [t, t + 2] for t in range(rng.integers(1, 9))],
        }
        for f in range(50)
    ]
    dataset = datasets.concatenate_datasets([datasets.Dataset.from_list(part) for part in (rows[:20], rows[20:])])
    if select:
        kept = rng.permutation(50)[:40].tolist()
        dataset, rows = dataset.select(kept), [rows[k] for k in kept]
    of_dataset, of_rows = token_offsets(dataset.with_format("numpy"), IDS), token_offsets(rows, IDS)
    for name in ("example_index_F", "row_starts", "context_index_F"):
        assert getattr(of_dataset, name).tolist() == getattr(of_rows, name).tolist()
    # Beyond both ends of every row too.
    tokens_Fn, rows_F = np.tile(np.arange(-1, 10), (len(rows), 1)), np.arange(len(rows))
    expected = [
        [row["offset_mapping"][t] if 0 <= t < len(row["offset_mapping"]) else None for t in tokens_Fn[0]]
        for row in rows
    ]
    for offsets in (of_dataset, of_rows):
        for side, chars in enumerate((offsets.begins(tokens_Fn, rows_F), offsets.ends(tokens_Fn, rows_F))):
            assert chars.tolist() == [[-1 if pair is None else pair[side] for pair in row] for row in expected]


def test_spans_begin_only_where_their_window_has_the_most_context():
    row = ROWS[0]
    starts, ends = np.array([[0, 9, 1]], np.float32), np.array([[0, 1, 9]], np.float32)
    assert postprocess_qa_predictions(EXAMPLES[:1], [row], (starts, ends)) == {"id 0": "x y"}
    row = {**row, "token_is_max_context": {"1": False, "2": True}}
    assert postprocess_qa_predictions(EXAMPLES[:1], [row], (starts, ends)) == {"id 0": "y"}


@pytest.mark.parametrize(
    "row",
    [
        {**ROWS[0], "token_is_max_context": {"1": False, "2": True}},
        {**ROWS[0], "offset_mapping": [[], (0, 1), (2, 3)]},
    ],
)
@pytest.mark.parametrize("form", [None, "arrow", "numpy"])
def test_offsets_that_are_not_read_from_arrow(row, form):
    dataset = datasets.Dataset.from_list([row]).with_format(form)
    offsets, expected = token_offsets(dataset, IDS[:1]), token_offsets([row], IDS[:1])
    for one, other in zip((offsets.begins, offsets.ends), (expected.begins, expected.ends), strict=True):
        assert one(np.arange(3)[None], np.arange(1)).tolist() == other(np.arange(3)[None], np.arange(1)).tolist()


@pytest.mark.parametrize(
    ("examples", "rows", "message"),
    [
        (EXAMPLES, ROWS[:3], r"2 of 5 examples have no features, the first being 'id 3'"),
        (EXAMPLES[1:], ROWS, r"Feature 0 has example_id 'id 0', which none of the 4 examples has"),
        ([*EXAMPLES, EXAMPLES[2]], ROWS, r"1 example ids occur more than once, for example 'id 2'"),
        ([], [], r"There are no examples to answer"),
    ],
)
def test_examples_and_features_must_match(examples, rows, message):
    with pytest.raises(InputError, match=message):
        SpanPostProcessor(examples, rows, version_2_with_negative=True)
