"""The promises of docs/concepts/checkpoints.md, with figures: killed runs, full disks, and runs for hours.

PORTICO_FAULTS is the share in percent of the figures of a release, 2 by default.
"""

import json
import os
import re
import shutil
from math import ceil
from pathlib import Path
from random import Random

import numpy as np
import pytest

from faulty_runs import CALLS, EPOCHS, LAUNCHING, PROCESSES, RUNS, Server
from portico.checkpoint.manifest import examine, steps_of_checkpoints

SHARE = float(os.environ.get("PORTICO_FAULTS", "2")) / 100
KILLS = 200  # over all kinds of runs
SECONDS = 3600
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("library")) as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(server, tmp_path_factory):
    """Return a function that returns the outcome of a run of a kind without faults."""
    known = {}

    def outcome(kind, rank=0):
        if (kind, rank) not in known:
            folder = tmp_path_factory.mktemp(kind) / "run"
            known[kind, rank] = server(kind, folder, rank=rank)
            assert "weights" in known[kind, rank], output(folder)
        return known[kind, rank]

    return outcome


@pytest.mark.parametrize("kind", RUNS)
def test_a_killed_run_resumes_and_ends_with_the_same_weights(kind, server, undisturbed, tmp_path):
    whole, num_killed, wanted = undisturbed(kind), 0, max(2, ceil(KILLS * SHARE / len(RUNS)))
    for seed in range(2 * wanted):  # a run may end before its time
        fault, folder = kill_of(kind, seed, whole), tmp_path / str(seed) / "run"
        num_killed += server(kind, folder, **fault)["killed"]
        assert_resumes(server, kind, folder, whole, fault)
        shutil.rmtree(folder.parent)
        if num_killed == wanted:
            break
    print(kind, "kills:", num_killed)
    assert num_killed == wanted


@pytest.mark.parametrize("kind", EPOCHS)
def test_a_run_killed_in_any_epoch_resumes_and_ends_with_the_same_weights(kind, server, undisturbed, tmp_path):
    """Three kills at least, one for each epoch: by the share of files and checkpoints that are renamed before."""
    ranks = range(PROCESSES.get(kind, 1))
    outcomes, last_saved = [undisturbed(kind, rank) for rank in ranks], []
    wanted = max(3, ceil(KILLS * SHARE / len(EPOCHS)))
    for seed in range(wanted):
        rank = seed % len(ranks)
        renames = outcomes[rank]["calls"]["rename"]
        number = max(1, round(renames * (seed % 3 + Random(f"{kind} {seed}").random()) / 3))
        fault = {"call": "rename", "number": number, "action": "kill", "rank": rank}
        folder = tmp_path / str(seed) / "run"
        ended = server(kind, folder, **fault)
        if kind in LAUNCHING:
            assert re.search(r"Process \d ended with exit code -9", ended["error"]), output(folder)
        else:
            assert ended["killed"], output(folder)
        # Of AllenNLP's trainer, the epochs.
        epochs = [int(file.name.split("_e")[1].split("_")[0]) for file in folder.glob("training_state_*")]
        last_saved.append(max((*steps_of_checkpoints(folder).values(), *epochs), default=0))
        damaged = [found for path in steps_of_checkpoints(folder) if (found := examine(path).damage)]
        assert not damaged, (fault, damaged)
        again = server(kind, folder)
        assert again.get("weights") == outcomes[0]["weights"], (fault, again, output(folder))
        shutil.rmtree(folder.parent)
    print(kind, "kills:", len(last_saved), "after the checkpoints of steps", sorted(last_saved))


@pytest.mark.parametrize(("kind", "rank"), [(kind, rank) for kind in RUNS for rank in range(PROCESSES.get(kind, 1))])
def test_a_full_disk_is_named_and_loses_nothing(kind, rank, server, undisturbed, tmp_path):
    whole = undisturbed(kind, rank)
    first, last = 1, whole["calls"]["write"]
    if rank:  # writes nothing but its part of each of the four checkpoints: take the second one
        first, last = last // 4 + 1, last // 2
    writes = last - first + 1
    numbers = sorted({round(at) for at in np.linspace(first, last, max(3, min(writes, round(writes * SHARE))))})
    for number in numbers:
        fault = {"call": "write", "number": number, "action": "fill", "rank": rank}
        folder = tmp_path / str(number) / "run"
        error = server(kind, folder, **fault).get("error", "no error")
        if kind == "sweep":  # a command, which ends with sentences
            assert re.search(
                r"^error: .*(No space left on device|failed: [01])", Path(f"{folder}.log").read_text(), re.M
            ), fault
            assert error == "RuntimeError: exit code 1", (fault, error)
        else:
            # TensorBoard's writer does not name its file.
            end = "(: .*)?" if kind == "descent" else ": .* needed.*: '.*"
            named = re.fullmatch(rf"(StorageFull|OS)Error: \[Errno 28\] No space left on device{end}", error)
            assert named, (fault, error, output(folder))
        if kind not in PROCESSES:  # another process may still write
            assert not [path for path in folder.rglob("*") if "partial" in path.name], fault
        assert_resumes(server, kind, folder, whole, fault)
    print(kind, rank, "full disks:", len(numbers))


def test_cycles_in_one_process_hold_nothing(server, tmp_path):
    server("cycles", tmp_path / "run", seconds=SECONDS * SHARE)
    held = np.array(json.loads((tmp_path / "held.json").read_text()))
    settled = held[len(held) // 4 :]
    growth = {
        name: np.polyfit(np.arange(len(settled)), values, 1)[0] * 100
        for name, values in zip(("bytes", "descriptors", "threads", "files"), settled.T, strict=True)
    }
    print("cycles:", len(held), "growth in 100 cycles:", growth)
    assert growth["bytes"] < 1 << 20, growth
    assert (settled[:, 1:] == settled[0, 1:]).all(), growth


def kill_of(kind, seed, whole):
    """Return when a run is killed: at a time, or before one of its calls that change files."""
    rng = Random(f"{kind} {seed}")
    if seed % 2:
        return {"delay": rng.uniform(0, whole["seconds"])}
    call = rng.choice([name for name in CALLS if whole["calls"][name]])
    return {"call": call, "number": rng.randint(1, whole["calls"][call]), "action": "kill"}


def assert_resumes(server, kind, folder, whole, fault):
    """Check that what a run had saved is whole, that it continues from there, and how it ends."""
    damaged = [found for path in steps_of_checkpoints(folder) if (found := examine(path).damage)]
    assert not damaged, (fault, damaged)
    steps = folder.with_name("steps")
    saved = [int(line.split()[1]) for line in lines(steps) if line.startswith("saved")]
    again = server(kind, folder)
    if kind == "descent" and not list(folder.glob("training_state_*")):
        # As AllenNLP: a folder without a complete checkpoint is not overwritten.
        assert "but no checkpoint that training can resume from" in again["error"], (fault, again)
        return
    assert again.get("weights") == whole["weights"], (fault, again, output(folder))
    if kind not in ("descent", "sweep"):
        # Under `async_save` the last one may not be complete.
        safe = [0, *sorted(set(saved))][-1 if kind != "async_save" or not saved else -2]
        began = [int(line.split()[1]) for line in lines(steps) if line.startswith("began")][-1]
        assert began >= safe, (fault, began, saved)
    left = {path for path in folder.rglob(".*") if path.parent.name != "optimizer_0"}
    assert not left, (fault, left)


def lines(file):
    return file.read_text().splitlines() if file.exists() else []


def output(folder):
    return Path(f"{folder}.log").read_text()[-4000:]
