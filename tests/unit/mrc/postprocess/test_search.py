import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc import SpanPostProcessor
from portico.mrc.postprocess.search import CandidateSearch, top_tokens
from portico.mrc.postprocess.token_offsets import TokenOffsets

SLOW_ORDERS = {
    "deterministic": lambda row: sorted(range(len(row)), key=lambda token: (-row[token], token)),
    "hf": lambda row: np.argsort(row)[::-1].tolist(),
    "primeqa": lambda row: np.argsort(row.tolist())[::-1].tolist(),
}


@pytest.mark.parametrize("n", [1, 20, 400])
@pytest.mark.parametrize("spread", [0, 3, 40, 1000], ids=lambda spread: f"spread{spread}")
@pytest.mark.parametrize("order", SLOW_ORDERS)
def test_top_tokens_match_a_sort_of_the_whole_row(order, spread, n):
    rng = np.random.default_rng(spread)
    logits = np.round(rng.normal(0, spread, (40, 384))).astype(np.float32)
    logits[:10] += rng.random((10, 384), np.float32)  # some rows without equal logits
    assert top_tokens(logits, n, order).tolist() == [SLOW_ORDERS[order](row)[:n] for row in logits]


def uniform_offsets(num_features, length):
    """Return the offsets of features of equal length, every token of which may begin and end an answer."""
    row_starts = np.arange(num_features + 1) * length
    context_F = np.zeros(num_features, np.int64)
    return TokenOffsets(np.arange(num_features), row_starts, np.zeros((row_starts[-1], 2), np.int32), context_F)


def found(logits, longest, n_best_size=3, order="deterministic"):
    search = CandidateSearch(uniform_offsets(len(logits), longest), n_best_size, 30, order)
    return search((logits, logits), np.arange(len(logits)))


def test_short_rows_and_padding_leave_gaps():
    kept = found(np.array([[1.0, 9.0, 3.0, 99.0]], np.float32), longest=3, n_best_size=5)
    assert kept.start_token_Fn.tolist() == [[1, 2, 0, -1, -1]]
    kept = found(np.array([[1.0, 9.0, 3.0, 99.0]], np.float32), longest=3, n_best_size=5, order="hf")
    assert kept.start_token_Fn.tolist() == [[-1, 1, 2, 0, -1]]  # padding takes a place


def test_hf_order_sorts_rows_padded_to_the_longest_feature():
    (tokens,) = found(np.array([[1.0, 9.0, -200.0]], np.float32), longest=5, order="hf").start_token_Fn.tolist()
    assert tokens[:2] == [1, 0]
    assert tokens[2] in (3, 4)


def test_primeqa_order_ignores_padding():
    kept = found(np.array([[1.0, 9.0, 3.0, 99.0]], np.float32), longest=3, n_best_size=4, order="primeqa")
    assert kept.start_token_Fn.tolist() == [[1, 2, 0, -1]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_candidates_take_less_than_300_bytes_a_feature(dtype):
    kept = found(np.random.default_rng(0).normal(size=(50, 384)).astype(dtype), longest=384, n_best_size=20)
    assert kept.start_logit_Fn.dtype == dtype
    assert sum(column.nbytes for column in kept.columns()) / 50 < 300


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["start", "end"])
def test_logits_must_be_finite(name, value):
    batch = {"start": np.zeros((2, 4), np.float32), "end": np.zeros((2, 4), np.float32)}
    batch[name][1, 2] = value
    search = CandidateSearch(uniform_offsets(9, 4), 3, 30, "deterministic")
    with pytest.raises(InputError, match=f"The {name} logit of feature 8 at token 2 is {value}, but only finite"):
        search((batch["start"], batch["end"]), np.array([5, 8]))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((np.zeros((1, 4)),), r"The model returned 1 arrays, but start logits and end logits are needed"),
        (np.zeros((1, 4)), r"The model returned a single array of shape \(1, 4\)"),
        ((np.zeros((1, 4)), np.zeros((1, 3))), r"Got start logits of shape \(1, 4\) and end logits of shape \(1, 3\)"),
        ((np.zeros((1, 4)), np.zeros((1, 4), int)), r"dtype int64; .* set mode='beam_search'"),
        ((np.zeros((2, 4)), np.zeros((2, 4))), r"Got logits for 2 features, but 1 features"),
    ],
)
def test_outputs_of_other_heads_are_rejected(outputs, message):
    row = {"example_id": "a", "offset_mapping": [None, (0, 1)]}
    post_processor = SpanPostProcessor([{"id": "a", "context": "x"}], [row], version_2_with_negative=False)
    with pytest.raises(InputError, match=message):
        post_processor.update_outputs(outputs, [0])


def test_other_outputs_are_ignored():
    row = {"example_id": "a", "offset_mapping": [None, (0, 1), (2, 3)]}
    post_processor = SpanPostProcessor([{"id": "a", "context": "x y"}], [row], version_2_with_negative=False)
    logits_BL = np.array([[0.0, 0.0, 9.0]], np.float32)
    hidden_states = np.full((1, 3, 5), np.nan, np.float32)
    post_processor.update_outputs((logits_BL, logits_BL, hidden_states), [0])
    assert sum(column.nbytes for column in post_processor.candidates().columns()) < 300
    assert post_processor.compute().predictions == {"a": "y"}
