"""The layers of a model, and the IPU of each."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from portico.ipu.config import IncompatibleIPUConfigError
from portico.ipu.pipelining.layers import layer_ipus, layer_names


def test_finds_stacks_by_class_name():
    class OddBlock(torch.nn.Module):
        pass

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList([OddBlock(), OddBlock()])

    assert layer_names(Model()) == ["parts.0", "parts.1"]


class TestLayersPerIpu:
    @pytest.mark.parametrize(
        ("layers", "ipus", "number", "expected"),
        [
            ([-1], 2, 7, [0] * 3 + [1] * 4),
            ([2, -1], 2, 6, [0] * 2 + [1] * 4),
            ([-1, 2, -1, 2], 4, 7, [0, 1, 1, 2, 2, 3, 3]),
            ([-1], 1, 9, [0] * 9),
            ([3, 4], 2, 7, [0] * 3 + [1] * 4),
            ([5], 1, 9, [0] * 9),
        ],
    )
    def test_are_distributed(self, layers, ipus, number, expected):
        assert layer_ipus(layers, ipus, number) == expected

    @pytest.mark.parametrize("layers", [[3, 3], [5, 5], [8, -1]])
    def test_must_add_up(self, layers):
        with pytest.raises(IncompatibleIPUConfigError, match="does not define the correct number of layers"):
            layer_ipus(layers, 2, 7)

    def test_need_one_number_per_ipu(self):
        with pytest.raises(IncompatibleIPUConfigError, match="its length does not match ipus_per_replica"):
            layer_ipus([1, 2, 4], 2, 7)

    @given(st.lists(st.integers(-1, 5), min_size=2, max_size=6), st.integers(1, 30))
    @settings(deadline=None)
    def test_place_every_layer_in_order_or_refuse(self, layers, number):
        try:
            ipus = layer_ipus(layers, len(layers), number)
        except IncompatibleIPUConfigError:
            told = sum(count for count in layers if count > 0)
            assert told > number or (told < number and -1 not in layers)
            return
        assert len(ipus) == number
        assert ipus == sorted(ipus)
        for ipu, count in enumerate(layers):
            assert count == -1 or ipus.count(ipu) == count
