import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from portico.errors import InputError
from portico.mrc.postprocess.search import BestTokens, TopTokenSearch, top_tokens
from portico.mrc.postprocess.streaming import SpanCollector
from portico.mrc.postprocess.token_offsets import TokenOffsets

logits = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.tuples(st.integers(1, 4), st.integers(1, 12)),
    elements=st.integers(-3, 3).map(float),  # so few values that many are equal
)


@settings(deadline=None)  # the machine may be busy
@given(logits, st.integers(1, 14))
def test_equal_logits_are_kept_in_the_order_of_their_tokens(logits_RL, n):
    expected = [sorted(range(len(row)), key=lambda t, row=row: (-row[t], t))[:n] for row in logits_RL]
    assert top_tokens(logits_RL, n, "deterministic").tolist() == expected


def test_hf_order_is_that_of_an_unstable_sort_read_backwards():
    logits_RL = np.random.default_rng(0).integers(0, 3, (5, 40)).astype(np.float32)
    expected = [np.argsort(row)[-1:-8:-1].tolist() for row in logits_RL]
    assert top_tokens(logits_RL, 7, "hf").tolist() == expected


def random_logits(num_features, length, seed=0):
    return np.random.default_rng(seed).normal(size=(2, num_features, length)).astype(np.float32)


def collect(num_features, longest, batches, n_best_size=3, ties="deterministic"):
    row_starts = np.arange(num_features + 1) * longest
    offsets = TokenOffsets(np.arange(num_features), row_starts, np.zeros((row_starts[-1], 2), np.int32))
    search = TopTokenSearch(n_best_size, longest, ties)
    collector = SpanCollector(offsets, BestTokens(search, n_best_size, longest))
    for starts, ends, rows in batches:
        collector.update((starts, ends), rows)
    return collector


def test_the_best_tokens_of_every_feature_are_kept_in_any_order_of_rows():
    starts, ends = random_logits(10, 8)
    order = np.random.default_rng(1).permutation(10)
    batches = [(starts[rows], ends[rows], rows) for rows in (order[:4], order[4:])]
    kept = collect(10, 8, batches).candidates()
    assert kept.feature_index_F.tolist() == list(range(10))
    for top, logits_FL in ((kept.starts, starts), (kept.ends, ends)):
        assert top.token_Fn.tolist() == np.argsort(-logits_FL, axis=1)[:, :3].tolist()
        assert top.logit_Fn.tolist() == (-np.sort(-logits_FL, axis=1))[:, :3].tolist()
        assert top.null_F.tolist() == logits_FL[:, 0].tolist()


def test_a_repeated_feature_counts_once():
    starts, ends = random_logits(4, 6)
    collector = collect(3, 6, [(starts, ends, [0, 1, 2, 1])])
    kept = collector.candidates()
    assert kept.feature_index_F.tolist() == [0, 1, 2]
    assert kept.starts.null_F.tolist() == starts[:3, 0].tolist()


def test_rows_shorter_than_the_list_and_padding_leave_gaps():
    starts = np.array([[1.0, 9.0, 3.0, 99.0]], np.float32)
    top = collect(1, 3, [(starts, starts, [0])], n_best_size=5).candidates().starts
    assert top.token_Fn.tolist() == [[-1, 1, 2, 0, -1]]  # token 3 is padding, and took a place as it does in HF


def test_hf_ties_see_rows_padded_to_the_longest_feature():
    starts = np.array([[1.0, 9.0, -200.0]], np.float32)
    top = collect(1, 5, [(starts, starts, [0])], ties="hf").candidates().starts
    assert top.token_Fn[0, :2].tolist() == [1, 0]
    assert top.token_Fn[0, 2] in (3, 4)


def test_collectors_of_several_processes_merge():
    starts, ends = random_logits(7, 5)
    rows = np.arange(7)
    parts = [collect(7, 5, [(starts[r], ends[r], rows[r])]) for r in (slice(0, 4), slice(3, 7))]
    parts[0].merge(pickle.loads(pickle.dumps(parts[1].candidates())))
    together, whole = parts[0].candidates(), collect(7, 5, [(starts, ends, rows)]).candidates()
    assert together.starts.token_Fn.tolist() == whole.starts.token_Fn.tolist()
    assert together.ends.logit_Fn.tolist() == whole.ends.logit_Fn.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_feature_takes_less_than_300_bytes(dtype):
    starts, ends = random_logits(50, 384).astype(dtype)
    kept = collect(50, 384, [(starts, ends, np.arange(50))], n_best_size=20).candidates()
    assert kept.starts.logit_Fn.dtype == dtype
    assert kept.nbytes / 50 < 300


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["start", "end"])
def test_logits_that_are_not_finite_are_refused(name, value):
    batch = {"start": np.zeros((2, 4), np.float32), "end": np.zeros((2, 4), np.float32)}
    batch[name][1, 2] = value
    with pytest.raises(InputError, match=f"The {name} logit of feature 8 at token 2 is {value}"):
        collect(9, 4, [(batch["start"], batch["end"], [5, 8])])


def test_asking_before_any_logits_came_is_refused():
    with pytest.raises(InputError, match="None of the 9 features got logits"):
        collect(9, 4, []).candidates()
