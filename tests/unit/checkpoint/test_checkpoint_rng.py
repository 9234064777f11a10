import random
from types import SimpleNamespace

import numpy as np
import torch

from portico.checkpoint.resume import load_rng_state, save_rng_state

ALONE = SimpleNamespace(world_size=1, process_index=0)


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_every_generator_comes_back(tmp_path):
    save_rng_state(str(tmp_path), ALONE)
    expected = draw()
    assert draw() != expected
    load_rng_state(str(tmp_path), ALONE)
    assert draw() == expected


def test_each_process_has_its_file(tmp_path):
    save_rng_state(str(tmp_path), SimpleNamespace(world_size=2, process_index=1))
    assert [file.name for file in tmp_path.iterdir()] == ["rng_state_1.pth"]


def test_a_missing_file_is_told(tmp_path, caplog):
    load_rng_state(str(tmp_path), ALONE)
    assert "random numbers go on from the present seed" in caplog.text


def test_without_a_folder_nothing_happens(caplog):
    before = torch.get_rng_state()
    load_rng_state(None, ALONE)
    assert torch.equal(torch.get_rng_state(), before)
    assert not caplog.text
