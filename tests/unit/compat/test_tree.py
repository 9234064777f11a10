from collections import namedtuple

import torch

from portico.compat.tree import map_tensors, pad_to_longest


def two_processes(length):
    """Return a fake gather in which another process has tensors of length 5."""
    return torch.stack([length, torch.full_like(length, 5)])


def test_map_tensors_keeps_containers():
    Pair = namedtuple("Pair", "left right")
    result = map_tensors(lambda tensor: tensor + 1, {"a": Pair(torch.zeros(1), [torch.ones(1), "x"])})
    assert isinstance(result["a"], Pair)
    assert result["a"].left == 1
    assert result["a"].right[0] == 2
    assert result["a"].right[1] == "x"


def test_pad_across_processes_pads_to_longest():
    padded = pad_to_longest(two_processes, torch.ones(2, 3), dim=1, pad_index=-100, pad_first=False)
    assert padded.tolist() == [[1, 1, 1, -100, -100]] * 2


def test_pad_first():
    padded = pad_to_longest(two_processes, torch.ones(1, 3, 2), dim=1, pad_index=0, pad_first=True)
    assert padded[0, :, 0].tolist() == [0, 0, 1, 1, 1]


def test_tensors_without_the_dimension_are_not_padded():
    tensor = torch.ones(3)
    assert pad_to_longest(two_processes, tensor, dim=1, pad_index=0, pad_first=False) is tensor


def test_sizes_are_exchanged_once():
    calls = []

    def gather(lengths):
        calls.append(lengths.tolist())
        return torch.stack([lengths, lengths + 1])

    data = {"a": torch.ones(2, 3), "b": [torch.ones(2), torch.ones(1, 4)]}
    padded = pad_to_longest(gather, data, dim=1, pad_index=0, pad_first=False)
    assert calls == [[3, 4]]
    assert (padded["a"].shape, padded["b"][0].shape, padded["b"][1].shape) == ((2, 4), (2,), (1, 5))
