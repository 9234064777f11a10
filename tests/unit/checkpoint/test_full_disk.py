"""A full disk, no inodes and a limit of the size of files, at every file that a run writes at its end."""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from models import Sequences, pad_everything, tiny_gpt2, toy_arguments
from portico import Trainer
from portico.checkpoint.manifest import examine
from portico.trust.disk import StorageFullError

FILES = {"config.json", "generation_config.json", "model.safetensors", "training_args.bin", "trainer_state.json"}


@pytest.fixture
def trained(tmp_path):
    """A trainer with a checkpoint, whose output folder is on a file system of 4 MiB and 60 files."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=60", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    try:
        args = toy_arguments(place / "run", max_steps=2, save_strategy="steps", save_steps=2)
        trainer = Trainer(tiny_gpt2(), args, train_dataset=Sequences(9), data_collator=pad_everything)
        trainer.train()
        yield trainer
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def finish(trainer):
    """Write what a run writes at its end; return the file that could not be written."""
    try:
        trainer.save_model()
        trainer.save_state()
        trainer.save_metrics("train", {"loss": 1.0})
    except StorageFullError as error:
        reason = (
            error.strerror if "checkpoint-2 is complete, and the run can be resumed from there" in str(error) else ""
        )
        return Path(error.filename).name, reason
    return None, ""


def test_every_file_of_the_end_names_itself_and_the_room(trained):
    run = Path(trained.args.output_dir)
    ballast = run.parent / "ballast"
    named = set()
    for room in range(0, 100_000, 4096):
        known = os.statvfs(run)
        ballast.write_bytes(bytes(max(known.f_bavail * known.f_frsize - room, 0)))
        name, reason = finish(trained)
        named.add(name)
        assert name is None or "are needed, and there is room for" in reason
        ballast.unlink()
        assert examine(run / "checkpoint-2").damage is None
        assert not list(run.glob(".*"))
        for file in run.glob("*.*"):
            file.unlink()
    assert {None, *FILES} - {"config.json"} <= named


def test_missing_inodes_are_named(trained):
    run = Path(trained.args.output_dir)
    while os.statvfs(run).f_favail:
        (run.parent / str(os.statvfs(run).f_favail)).touch()
    named = []
    for number in range(1, 9):
        (run.parent / str(number)).unlink()
        name, reason = finish(trained)
        named.append(name)
        assert name is None or "has no inodes left" in reason
        for file in run.glob("*.*"):
            file.unlink()
    assert {"model.safetensors", "trainer_state.json", None} <= set(named)


def test_limit_of_the_size_of_a_file_is_named(trained):
    child = os.fork()  # which alone has the limit
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            name, reason = finish(trained)
            os._exit(0 if name == "model.safetensors" and "more than 20,000 bytes (`ulimit -f`)" in reason else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
