"""The decoder of CTC finds the most probable paths."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import options


def all_paths(values_TC, blank):
    """Return the log-probability of every label sequence, summed over its alignments."""
    found = {}
    for alignment in itertools.product(range(values_TC.shape[1]), repeat=len(values_TC)):
        labels = tuple(label for label, _ in itertools.groupby(alignment) if label != blank)
        score = float(sum(values_TC[step, label] for step, label in enumerate(alignment)))
        found[labels] = np.logaddexp(found.get(labels, -math.inf), score)
    return found


class TestBeamSearch:
    @given(
        steps=st.integers(1, 4),
        classes=st.integers(2, 3),
        blank=st.integers(0, 1),
        top_paths=st.integers(1, 3),
        seed=st.integers(0, 99),
    )
    @settings(max_examples=40, deadline=None)
    def test_finds_the_most_probable_of_all_paths(self, steps, classes, blank, top_paths, seed):
        generator = torch.Generator().manual_seed(seed)
        probs = torch.randn(steps, 2, classes, generator=generator).log_softmax(-1)
        lengths = torch.tensor([steps, max(steps - 1, 1)])
        scores, found_lengths, paths = poptorch.ctc_beam_search_decoder(probs, lengths, blank, 100, top_paths)
        assert (scores.shape, paths.shape) == ((2, top_paths), (2, top_paths, steps))
        for row in range(2):
            every = all_paths(probs[: lengths[row], row].double().numpy(), blank)
            best = sorted(every.values(), reverse=True)[:top_paths]
            for place, score in enumerate(best):
                path = tuple(paths[row, place, : found_lengths[row, place]].tolist())
                assert scores[row, place].item() == pytest.approx(score, abs=1e-5)
                assert every[path] == pytest.approx(score, abs=1e-5)
                assert (paths[row, place, len(path) :] == blank).all()

    def test_runs_in_a_program(self):
        class Decoder(nn.Module):
            def forward(self, x, lengths):
                return poptorch.ctc_beam_search_decoder(x.transpose(0, 1).log_softmax(-1), lengths, top_paths=2)

        x = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(0))
        scores, _, paths = poptorch.inferenceModel(Decoder(), options(2))(x, torch.tensor([3, 3, 2, 1]))
        assert (scores.shape, paths.shape, paths.dtype) == ((4, 2), (4, 2, 3), torch.int32)

    @pytest.mark.parametrize(
        ("shape", "choice", "message"),
        [
            ((2, 3), {}, r"takes probabilities \[time, rows, classes\] and a length for each row; it got \[2, 3\]"),
            ((2, 1, 3), {"blank": 3}, "blank=3, .* is one of 3 classes"),
            ((2, 1, 3), {"beam_width": 2, "top_paths": 3}, "at most `beam_width` are returned"),
        ],
    )
    def test_mismatched_arguments_are_refused(self, shape, choice, message):
        with pytest.raises(poptorch.Error, match=message):
            poptorch.ctc_beam_search_decoder(torch.zeros(shape), torch.tensor([2]), **choice)
