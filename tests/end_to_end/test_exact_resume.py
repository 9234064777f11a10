"""Experiments of ``conf``, resumed from the checkpoint of any step of three epochs: they end with the same weights."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from portico.checkpoint.manifest import steps_of_checkpoints
from portico.commands.replay import main as replay
from small_experiments import KINDS

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def train(command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def train(kind, folder, *overrides):
        given = (*KINDS[kind], f"paths.output_dir={folder}", "args.save_total_limit=null", *overrides)
        assert command_line(*given) == 0
        return {step: load_file(path / "model.safetensors") for path, step in steps_of_checkpoints(folder).items()}

    return train


def assert_resumes(train, kind, whole, expected, step):
    """Check that a run resumed after a step makes the same further steps, and no more."""
    folder = Path(f"from-{step}")
    checkpoint = shutil.copytree(whole / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    weights = train(kind, folder, f"args.resume_from_checkpoint={checkpoint}")
    assert weights.keys() == {number for number in expected if number >= step}
    for number, tensors in weights.items():
        assert all(torch.equal(tensor, expected[number][name]) for name, tensor in tensors.items()), (step, number)
    best, best_of_whole = (load_file(one / "model.safetensors") for one in (folder, whole))
    assert all(torch.equal(tensor, best_of_whole[name]) for name, tensor in best.items()), step


@pytest.mark.parametrize("kind", ["mrc", "masked_lm"])
def test_a_run_resumed_in_its_second_epoch_ends_with_the_same_weights(kind, train):
    whole = Path("whole")
    expected = train(kind, whole, "args.num_train_epochs=2", "args.per_device_train_batch_size=12")
    middle = len(expected) // 2 + 1
    smaller = {step: weights for step, weights in expected.items() if step >= middle}
    folder = Path("resumed")
    checkpoint = shutil.copytree(whole / f"checkpoint-{middle}", folder / f"checkpoint-{middle}")
    options = ("args.num_train_epochs=2", "args.per_device_train_batch_size=12")
    weights = train(kind, folder, *options, f"args.resume_from_checkpoint={checkpoint}")
    assert weights.keys() == smaller.keys()
    for step, tensors in weights.items():
        assert all(torch.equal(tensor, expected[step][name]) for name, tensor in tensors.items()), step


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumed_after_any_step_ends_with_the_same_weights(kind, train):
    whole = Path("whole")
    expected = train(kind, whole)
    for step in expected:
        assert_resumes(train, kind, whole, expected, step)
    print(kind, "resumed after each of steps:", len(expected))


def test_replay_of_an_untouched_run_has_the_recorded_loss(train, capsys):
    train("mrc", Path("whole"), "args.num_train_epochs=2", "args.logging_steps=1", "args.save_steps=4")
    with pytest.raises(SystemExit) as end:
        replay(["whole", "--step", "5"])
    assert "the loss logged at step 5 is the recorded one" in " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
