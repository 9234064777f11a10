"""Checkpoint folders compared file by file."""

import json

import numpy as np
import torch

from parity.peers import assert_same_values, untimed


def assert_same_checkpoint(ours, theirs):
    """Compare two ``checkpoint-N`` folders: weights and configuration byte for byte, the rest by what it holds."""
    assert {file.name for file in ours.iterdir()} == {file.name for file in theirs.iterdir()}
    for name in ("model.safetensors", "config.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    for name in ("optimizer.pt", "scheduler.pt"):
        assert_same_values(_load(ours / name), _load(theirs / name))
    assert_same_values(trainer_state(ours), trainer_state(theirs))
    mine, other = load_trusted(ours / "rng_state.pth"), load_trusted(theirs / "rng_state.pth")
    assert mine.keys() == other.keys()
    assert torch.equal(mine["cpu"], other["cpu"])
    assert mine["python"] == other["python"]
    assert mine["numpy"][0] == other["numpy"][0]
    assert np.array_equal(mine["numpy"][1], other["numpy"][1])
    assert mine["numpy"][2:] == other["numpy"][2:]


def trainer_state(folder):
    """Return what ``trainer_state.json`` says, without what depends on the clock."""
    state = json.loads((folder / "trainer_state.json").read_text())
    state["log_history"] = [untimed(entry) for entry in state["log_history"]]
    return state


def load_trusted(file):
    """Unpickle a file of our own."""
    return torch.load(file, weights_only=False)


def _load(file):
    return torch.load(file, weights_only=True)
