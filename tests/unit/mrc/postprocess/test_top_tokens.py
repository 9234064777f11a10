import numpy as np
import pytest

from portico.mrc.postprocess.search import top_tokens

SLOW = {
    "deterministic": lambda row: sorted(range(len(row)), key=lambda token: (-row[token], token)),
    "hf": lambda row: np.argsort(row)[::-1].tolist(),
    "primeqa": lambda row: np.argsort(row.tolist())[::-1].tolist(),
}


@pytest.mark.parametrize("n", [1, 20, 400])
@pytest.mark.parametrize("spread", [0, 3, 40, 1000], ids=lambda spread: f"spread{spread}")
@pytest.mark.parametrize("order", SLOW)
def test_equal_logits_are_ordered_as_a_sort_of_the_whole_row_does(order, spread, n):
    rng = np.random.default_rng(spread)
    logits = np.round(rng.normal(0, spread, (40, 384))).astype(np.float32)
    logits[:10] += rng.random((10, 384), np.float32)  # some rows without equal logits
    assert top_tokens(logits, n, order).tolist() == [SLOW[order](row)[:n] for row in logits]
