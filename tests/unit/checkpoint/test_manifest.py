"""What is left of a checkpoint after a kill, a full disk or damage, and what a resume makes of it."""

import errno
import json
import os
import re
import shutil
import time
from random import Random
from traceback import StackSummary

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

import portico
from damage import Touch, damaged_bytes, damaged_file
from models import toy_arguments, toy_trainer
from parity.peers import assert_same_values
from portico.checkpoint import writer
from portico.checkpoint.manifest import MANIFEST_FILE, Examination, examine, newest_complete, write_manifest
from portico.errors import InputError
from portico.trust.disk import replaced, write_text

SAVED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6}
SHARE = float(os.environ.get("PORTICO_FAULTS", "2")) / 100  # of the figures of a release
slow = pytest.mark.slow
# Files that a resume reads; the arguments in training_args.bin are not among them.
READ = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
FUZZED = [(name, is_listed) for name in READ for is_listed in (True, False)] + [(MANIFEST_FILE, True)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    toy_trainer(folder, **SAVED).train()
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a folder with checkpoints of steps 2, 4 and 6, all complete."""
    return shutil.copytree(trained, tmp_path / "run")


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def empty(file):
    file.write_bytes(b"")


def zero(file):
    file.write_bytes(bytes(file.stat().st_size))


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_every_checkpoint_is_complete(run):
    assert [examine(run / f"checkpoint-{step}").damage for step in (2, 4, 6)] == [None] * 3
    listed = json.loads((run / "checkpoint-6" / MANIFEST_FILE).read_text())
    assert set(listed) == names(run / "checkpoint-6") - {MANIFEST_FILE}


def keep_the_time(change):
    """Return ``change`` as damage makes it: nobody has written the file."""

    def spoil(file):
        times = file.stat()
        change(file)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    return spoil


@pytest.mark.parametrize("name", [*READ, "training_args.bin"])
@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (truncate, r"{} has \d+ bytes instead of \d+ and cannot be read \(.*\)"),
        (keep_the_time(truncate), r"{} has \d+ bytes instead of \d+, although it is not newer than the manifest"),
        (
            keep_the_time(flip_a_bit),
            r"{} has changed since it was written \(its checksum differs\), although it is not newer .*",
        ),
        # As after a power cut: the file system knew of the file, but had not written it.
        (keep_the_time(empty), r"{} has 0 bytes instead of \d+, although it is not newer than the manifest"),
        (keep_the_time(zero), r"{} has changed since it was written .*, although it is not newer .*"),
    ],
    ids=["truncated", "truncated unnoticed", "changed", "empty", "zeros"],
)
def test_damaged_checkpoint_is_refused_and_passed_over(run, caplog, name, spoil, what):
    refuses_and_passes_over(run, caplog, lambda folder: spoil(folder / name), what.format(name))


@pytest.mark.parametrize("lose", [empty, zero])
def test_run_falls_back_after_a_power_cut(run, caplog, lose):
    for file in (run / "checkpoint-6").iterdir():
        if file.name != MANIFEST_FILE:  # which alone is flushed
            keep_the_time(lose)(file)
    trainer = toy_trainer(run, **SAVED)
    trainer.train(resume_from_checkpoint=True)
    assert [logs["step"] for logs in trainer.state.log_history if "loss" in logs][-2:] == [5, 6]
    assert "checkpoint-6 is damaged, so it is skipped" in caplog.text
    assert examine(run / "checkpoint-6") == Examination()


def refuses_and_passes_over(run, caplog, spoil, what):
    spoil(run / "checkpoint-6")
    complete = rf"Set `resume_from_checkpoint='{run}/checkpoint-4'`, the newest complete"
    with pytest.raises(InputError, match=f"checkpoint-6 is damaged: {what}. {complete}"):
        toy_trainer(run, **SAVED).train(resume_from_checkpoint=str(run / "checkpoint-6"))
    assert newest_complete(run) == run / "checkpoint-4"
    assert "checkpoint-6 is damaged, so it is skipped" in caplog.text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_files", [20, pytest.param(round(100_000 * SHARE / len(FUZZED)), marks=slow)])
@pytest.mark.parametrize(("name", "is_listed"), FUZZED)
def test_any_damage_is_refused_or_harmless(run, name, is_listed, num_files):
    """Damage that the manifest does not list may be a change of the weights, but ends in no other error."""
    (run / "checkpoint-6" / "model.safetensors").rename(run / "expected")
    shutil.rmtree(run / "checkpoint-6")
    checkpoint = run / "checkpoint-4"
    if not is_listed:
        (checkpoint / MANIFEST_FILE).unlink()
    content = (checkpoint / name).read_bytes() if (checkpoint / name).exists() else b"{}"
    for seed in range(num_files):
        rng = Random(f"{name} {seed}")
        spoiled = damaged_file(rng, content.decode()) if name.endswith("json") and seed % 2 else None
        spoil(checkpoint / name, spoiled or damaged_bytes(rng, content))
        refusal = ""
        try:
            trainer = toy_trainer(run / "resumed", **{**SAVED, "save_strategy": "no"})
            trainer.train(resume_from_checkpoint=str(checkpoint))
        except InputError as error:
            refusal = str(error)
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
        else:
            expected = safetensors.torch.load_file(run / "expected")["linear.weight"]
            assert not is_listed or torch.equal(trainer.model.linear.weight, expected), seed
        assert refusal.isprintable(), seed


def spoil(file, content):
    keep_the_time(lambda file: file.write_bytes(content))(file)


def lose_weights(folder):
    (folder / "model.safetensors").unlink()


def lose_a_shard(folder):
    to_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def edited(change):
    """Return a function that changes the manifest of a folder, which remains its newest file."""

    def spoil(folder):
        listed = json.loads((folder / MANIFEST_FILE).read_text())
        (folder / MANIFEST_FILE).write_text(json.dumps(change(listed)))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lose_weights, "model.safetensors is missing"),
        (lose_a_shard, "model.safetensors is missing"),
        (
            lambda folder: flip_a_bit(folder / "rng_state.pth"),
            r"rng_state.pth has .* and cannot be read \(.*differs\)",
        ),
        (
            edited(lambda listed: {name.replace("scheduler", "scheduled"): entry for name, entry in listed.items()}),
            f"scheduler.pt is not listed in {MANIFEST_FILE}, although it is not newer than the manifest",
        ),
        (edited(lambda listed: {}), f"{MANIFEST_FILE} does not list trainer_state.json, which every checkpoint has"),
        (
            edited(lambda listed: {name: one for name, one in listed.items() if name != "model.safetensors"}),
            f"model.safetensors is not listed in {MANIFEST_FILE}, although it is not newer than the manifest",
        ),
    ],
)
def test_checkpoint_without_weights_or_a_whole_manifest_is_refused(run, caplog, spoil, what):
    refuses_and_passes_over(run, caplog, spoil, what)


# ---- Changed on purpose ----


def weights_of(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def to_shards(folder):
    names = {}
    for number, (name, tensor) in enumerate(sorted(weights_of(folder).items()), start=1):
        names[name] = f"model-0000{number}-of-00002.safetensors"
        safetensors.torch.save_file({name: tensor}, folder / names[name], metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "model.safetensors").unlink()


def to_pickle(folder):
    torch.save(weights_of(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cast(folder):
    safetensors.torch.save_file(
        {name: tensor.half() for name, tensor in weights_of(folder).items()}, folder / "model.safetensors"
    )


def prune(folder):
    pruned = {name: tensor * (tensor.abs() > 0.1) for name, tensor in weights_of(folder).items()}
    safetensors.torch.save_file(pruned, folder / "model.safetensors")


def lose(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def rewrite(name, change):
    def edit(folder):
        file = folder / name
        content = json.loads(file.read_text()) if file.suffix == ".json" else torch.load(file, weights_only=False)
        change(content)
        if file.suffix == ".json":
            file.write_text(json.dumps(content))
        else:
            torch.save(content, file)

    return edit


AGAIN = "was written again (its content differs from what the run wrote)"
FRESH_OPTIMIZER = "so optimizer and schedule start afresh"
FRESH_NUMBERS = "random numbers continue from the current state"


@pytest.mark.parametrize(
    ("edit", "changes", "fresh"),
    [
        (
            to_shards,
            "model.safetensors is gone, model.safetensors.index.json was added, model-00001-of-00002.safetensors was "
            "added, model-00002-of-00002.safetensors was added",
            [],
        ),
        (to_pickle, "model.safetensors is gone, pytorch_model.bin was added", []),
        (cast, f"model.safetensors {AGAIN}", []),
        (prune, f"model.safetensors {AGAIN}", []),
        (lose("optimizer.pt"), "optimizer.pt is gone", [f"has no optimizer.pt, {FRESH_OPTIMIZER}"]),
        (lose("scheduler.pt"), "scheduler.pt is gone", [f"has no scheduler.pt, {FRESH_OPTIMIZER}"]),
        (lose("rng_state.pth"), "rng_state.pth is gone", [FRESH_NUMBERS]),
        (
            lose("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"),
            "optimizer.pt is gone, rng_state.pth is gone, scheduler.pt is gone, training_args.bin is gone",
            [f"has no optimizer.pt and no scheduler.pt, {FRESH_OPTIMIZER}", FRESH_NUMBERS],
        ),
        (
            rewrite("optimizer.pt", lambda saved: saved["param_groups"][0].update(lr=0.5)),
            f"optimizer.pt {AGAIN}",
            [],
        ),
        (
            rewrite("scheduler.pt", lambda saved: saved.update(base_lrs=[0.5] * len(saved["base_lrs"]))),
            f"scheduler.pt {AGAIN}",
            [],
        ),
        (
            rewrite("trainer_state.json", lambda saved: saved.update(global_step=2)),
            f"trainer_state.json {AGAIN}",
            [],
        ),
        (lambda folder: (folder / "NOTES.md").write_text("mine"), None, []),
    ],
)
def test_checkpoint_that_was_changed_on_purpose_is_resumed_as_by_transformers(run, caplog, edit, changes, fresh):
    folder, weights = run / "checkpoint-4", []
    edit(folder)
    for library in (transformers, portico):
        args = toy_arguments(run / library.__name__, library.TrainingArguments, max_steps=6, seed=1)
        torch.manual_seed(0)
        trainer = toy_trainer(run, library.Trainer, {"args": args})
        caplog.clear()
        trainer.train(resume_from_checkpoint=str(folder))
        weights.append(trainer.model.state_dict())
    assert_same_values(*map(dict, weights))
    announced = [record.message for record in caplog.records if "was changed after it was written" in record.message]
    assert len(announced) == (changes is not None)
    assert all(f"{folder} was changed after it was written: {changes}. It is used" in one for one in announced)
    for message in (FRESH_OPTIMIZER, FRESH_NUMBERS):
        assert caplog.text.count(message) == sum(message in one for one in fresh)
    assert all(one in caplog.text for one in fresh)


def copy_without_times(folder):
    """Copy as `rclone` and `s3 sync` do: in parallel, and each file is as old as its copy."""
    for delay, file in enumerate(sorted(folder.iterdir(), reverse=True)):
        shutil.copyfile(file, folder / "copied")
        (folder / "copied").rename(file)
        os.utime(file, (time.time() - 3600 + delay,) * 2)


def save_as_before(folder):
    """Save other values of the same tensors, under a header that is the same byte for byte."""
    other = {name: tensor + 1 for name, tensor in weights_of(folder).items()}
    safetensors.torch.save_file(other, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_flipped_bit_in_a_copy_whose_files_have_new_times_is_refused(run, caplog):
    def spoil(folder):
        content = bytearray((folder / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "model.safetensors").write_bytes(content)
        copy_without_times(folder)

    refuses_and_passes_over(
        run,
        caplog,
        spoil,
        r"model.safetensors has changed since it was written \(its checksum differs\), although it holds the same "
        r"tensors, and the folder was copied since \([a-z_.]+ is unchanged and has another time\)",
    )


@pytest.mark.parametrize(
    ("spoil", "is_damage"),
    [
        (copy_without_times, False),
        (cast, False),
        (prune, False),  # saved without metadata
        (to_pickle, False),
        (save_as_before, True),
        (lambda folder: (folder / MANIFEST_FILE).unlink(), False),
    ],
    ids=["copied", "cast", "without metadata", "pickled", "other values", "consent"],
)
def test_weights_saved_again_in_a_copy_with_new_times(run, spoil, is_damage):
    copy_without_times(run / "checkpoint-4")
    spoil(run / "checkpoint-4")
    assert bool(examine(run / "checkpoint-4").damage) == is_damage


def test_other_values_of_the_same_tensors_are_used_with_a_warning_that_names_them(run, caplog):
    save_as_before(run / "checkpoint-4")
    toy_trainer(run, **SAVED).train(resume_from_checkpoint=str(run / "checkpoint-4"))
    assert (
        "model.safetensors was written again (its content differs from what the run wrote, in the same tensors)"
    ) in caplog.text


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
PARTS = ["optimizer_0/.metadata", "optimizer_0/__0_0.distcp", "optimizer_0/__1_0.distcp"]
ADAPTER = "adapter_model.safetensors"


@pytest.mark.parametrize(
    ("written", "gone", "added", "damage"),
    [
        ([*SHARDS, INDEX], [*SHARDS, INDEX], ["model.safetensors"], None),
        ([*SHARDS, INDEX], [SHARDS[0]], [], f"{SHARDS[0]} is missing"),
        ([*SHARDS, INDEX], [SHARDS[0]], ["model.safetensors"], None),
        ([*SHARDS, INDEX], [INDEX], [], f"{INDEX} is missing"),
        (["model.safetensors", *PARTS], PARTS, [], None),
        (["model.safetensors", *PARTS], [PARTS[1]], [], f"{PARTS[1]} is missing"),
        (["model.safetensors", "rng_state_0.pth", "rng_state_1.pth"], ["rng_state_1.pth"], [], None),
        ([ADAPTER, "adapter_config.json"], [ADAPTER, "adapter_config.json"], ["model.safetensors"], None),
        ([ADAPTER, f"other/{ADAPTER}"], [ADAPTER, f"other/{ADAPTER}"], ["pytorch_model.bin"], None),
        ([ADAPTER, f"other/{ADAPTER}"], [f"other/{ADAPTER}"], [], f"other/{ADAPTER} is missing"),
        (["model.safetensors", "2_Dense/model.safetensors"], ["2_Dense/model.safetensors"], [], "2_Dense/.* missing"),
    ],
)
def test_files_of_sharded_models_and_adapters_that_are_gone(tmp_path, written, gone, added, damage):
    def write(name):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if name == INDEX:
            (tmp_path / name).write_text(json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))}))
        elif name.endswith(".safetensors"):
            safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / name)
        elif name.endswith(".bin"):
            torch.save({"a": torch.ones(2)}, tmp_path / name)
        else:
            (tmp_path / name).write_bytes(name.encode())

    for name in written:
        write(name)
    (tmp_path / "trainer_state.json").write_text("{}")
    write_manifest(tmp_path)
    assert examine(tmp_path) == Examination()
    for name in gone:
        (tmp_path / name).unlink()
    for name in added:
        write(name)
    found = examine(tmp_path)
    if damage is None:
        assert set(found.changes) == {*(f"{one} is gone" for one in gone), *(f"{one} was added" for one in added)}
    assert re.fullmatch(str(damage), str(found.damage))


PAGE = 4096


def words(content):
    """The 64-bit words of bytes, to be changed in place."""
    return np.frombuffer(content, "<u8")


def reverse_a_page(content):
    words(content)[: PAGE // 8] = words(content)[: PAGE // 8][::-1].copy()


def exchange_words(content):
    words(content)[[0, 1]] = words(content)[[1, 0]]


def exchange_pages(content):
    content[: 2 * PAGE] = content[PAGE : 2 * PAGE] + content[:PAGE]


def shift_one(content):
    words(content)[0] += 1
    words(content)[1] -= 1


def change_the_last_byte(content):
    content[-1] ^= 1


@pytest.mark.parametrize(
    "change",
    [reverse_a_page, exchange_words, exchange_pages, shift_one, change_the_last_byte],
    ids=lambda do: do.__name__,
)
def test_a_checksum_notices_what_keeps_the_sum_of_all_words(change, tmp_path):
    content = bytearray(np.random.default_rng(0).integers(0, 256, 5 * PAGE, np.uint8).tobytes())
    (tmp_path / "weights").write_bytes(content)
    (tmp_path / "trainer_state.json").touch()
    write_manifest(tmp_path)
    assert examine(tmp_path).damage is None
    change(content)
    keep_the_time(lambda file: file.write_bytes(content))(tmp_path / "weights")
    assert "its checksum differs" in examine(tmp_path).damage


@pytest.mark.parametrize("checksum", [17, "pages:b3cfe46a"])
def test_manifest_of_another_version_is_named(checksum, tmp_path):
    (tmp_path / "weights").write_bytes(b"12345")
    (tmp_path / MANIFEST_FILE).write_text(json.dumps({"weights": [5, checksum]}))
    assert examine(tmp_path).damage.startswith(f"{MANIFEST_FILE} is of another version of portico; delete it")


def test_damaged_manifest_is_refused(run):
    for content in (b"", b"[1]", b'{"model.safetensors": 3}', b"\xff", b"[" * 100_000):
        (run / "checkpoint-6" / MANIFEST_FILE).write_bytes(content)
        with pytest.raises(InputError, match=f"{MANIFEST_FILE} cannot be read"):
            toy_trainer(run, **SAVED).train(resume_from_checkpoint=str(run / "checkpoint-6"))


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "checkpoint-4/../../x", "x" * 5000])
def test_manifest_may_not_list_files_outside(run, name):
    listed = {name: [5, "xxh3:"], "trainer_state.json": [5, "xxh3:"]}
    (run / "checkpoint-6" / MANIFEST_FILE).write_text(json.dumps(listed))
    problem = examine(run / "checkpoint-6").damage
    assert ("which is outside the folder" if "/" in name else "cannot be read") in problem
    assert len(problem) < 400


@pytest.mark.parametrize("name", [name for name in READ if name.endswith((".pt", ".pth"))])
def test_pickle_of_a_checkpoint_is_not_executed(run, name):
    (run / "checkpoint-6" / MANIFEST_FILE).unlink()
    torch.save({"state": Touch(run / "touched")}, run / "checkpoint-6" / name)
    with pytest.raises(
        InputError, match=rf"checkpoint-6/{name} cannot be read: a pickle .* could run code; .*do not sw"
    ):
        toy_trainer(run, **SAVED).train(resume_from_checkpoint=str(run / "checkpoint-6"))
    assert not (run / "touched").exists()


def set_in(keys, value):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("trainer_state.json", set_in(["global_step"], "4"), "`global_step` is '4', not a number of 0 or more"),
        ("trainer_state.json", set_in(["global_step"], -4), "`global_step` is '-4', not a number of 0 or more"),
        ("trainer_state.json", set_in(["global_step"], 1.5), "`global_step` is 1.5, not an integer"),
        ("trainer_state.json", set_in(["epoch"], float("nan")), "`epoch` is 'nan', not a number of 0 or more"),
        ("trainer_state.json", set_in(["save_steps"], None), "`save_steps` is 'None', not a number"),
        ("trainer_state.json", set_in(["log_history"], 5), "`log_history` is not a list of objects"),
        ("trainer_state.json", set_in(["log_history"], [5]), "`log_history` is not a list of objects"),
        (
            "trainer_state.json",
            set_in(["best_model_checkpoint"], ["a"]),
            "`best_model_checkpoint` is .*, not a str",
        ),
        ("optimizer.pt", set_in(["param_groups", 0, "betas"], (0.9,)), r"`betas` is '\(0.9,\)', not like"),
        ("optimizer.pt", set_in(["param_groups"], 5), "'int' object is not iterable"),
        ("optimizer.pt", lambda saved: saved["param_groups"][0].pop("lr"), "`lr` is missing"),
        ("optimizer.pt", lambda saved: saved.pop("state"), "'state'"),
        ("scheduler.pt", set_in(["base_lrs"], 5), "`base_lrs` is '5', not like"),
        ("scheduler.pt", set_in(["last_epoch"], {}), "`last_epoch` is '{}', not like"),
        ("rng_state.pth", set_in(["python"], 5), "object is not|must be"),
    ],
)
def test_forged_file_is_refused(run, name, change, what):
    file = run / "checkpoint-6" / name
    (run / "checkpoint-6" / MANIFEST_FILE).unlink()
    if file.suffix == ".json":
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))
    else:
        content = torch.load(file, weights_only=False)
        change(content)
        torch.save(content, file)
    with pytest.raises(InputError, match=rf"checkpoint-6/{name} cannot be read: .*({what})"):
        toy_trainer(run, **SAVED).train(resume_from_checkpoint=str(run / "checkpoint-6"))


def test_error_names_the_optimizer_file_that_was_read(run):
    folder = run / "checkpoint-6"
    (folder / MANIFEST_FILE).unlink()
    groups = [{"params": ["linear.weight"]}, {"params": ["linear.bias"]}]
    torch.save({"state": {}, "param_groups": groups}, folder / "optimizer.bin")  # as transformers under FSDP
    with pytest.raises(InputError, match=r"checkpoint-6/optimizer\.bin cannot be read: `betas` is missing"):
        toy_trainer(run, **SAVED).train(resume_from_checkpoint=str(folder))


@pytest.mark.parametrize("name", READ)
def test_damaged_file_of_a_checkpoint_without_manifest_is_named(run, name):
    for step in (2, 4, 6):
        (run / f"checkpoint-{step}" / MANIFEST_FILE).unlink()
    truncate(run / "checkpoint-6" / name)
    with pytest.raises(InputError, match=rf"checkpoint-6/{name} cannot be read: .*checkpoint-4'`, the newest"):
        toy_trainer(run, **SAVED).train(resume_from_checkpoint=True)


def test_checkpoint_of_transformers_has_no_manifest_and_is_resumed(run):
    (run / "checkpoint-4" / MANIFEST_FILE).unlink()
    # Only a run with a sharded model looks for them.
    (run / "checkpoint-4/optimizer_0").mkdir()
    (run / "checkpoint-4/optimizer_0/.metadata").write_bytes(b"of somebody else")
    shutil.rmtree(run / "checkpoint-6")
    trainer = toy_trainer(run, **SAVED)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 6


def test_no_complete_checkpoint(run):
    for step in (2, 4, 6):
        truncate(run / f"checkpoint-{step}" / "optimizer.pt")
    with pytest.raises(InputError, match="holds no complete `checkpoint-N`"):
        toy_trainer(run, **SAVED).train(resume_from_checkpoint=True)
    with pytest.raises(InputError, match="holds no other complete checkpoint; train from the start"):
        toy_trainer(run, **SAVED).train(resume_from_checkpoint=str(run / "checkpoint-2"))


class Editing(transformers.TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        torch.save({"edited": 1}, f"{folder}/training_args.bin")


def test_files_that_a_callback_edits_belong_to_the_checkpoint(tmp_path):
    toy_trainer(tmp_path, parts={"callbacks": [Editing()]}, **SAVED).train()
    assert [examine(tmp_path / f"checkpoint-{step}").damage for step in (2, 4, 6)] == [None] * 3
    assert torch.load(tmp_path / "checkpoint-6" / "training_args.bin") == {"edited": 1}


class Killed(BaseException):
    pass


def rotate(run_folder):
    writer.rotate_checkpoints(run_folder, limit=1, best=f"{run_folder}/checkpoint-2", last_step=6)


def keep_the_last(run_folder):
    writer.delete_all_but_best(run_folder, f"{run_folder}/checkpoint-6")


@pytest.mark.parametrize(("delete", "kept"), [(rotate, "checkpoint-2"), (keep_the_last, "checkpoint-4")])
def test_killed_while_deleting_old_checkpoints(run, monkeypatch, delete, kept):
    def half_delete(folder, **kwargs):
        if folder.is_dir():
            (folder / "optimizer.pt").unlink()
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(writer.shutil, "rmtree", half_delete)
        with pytest.raises(Killed):
            delete(str(run))
    assert newest_complete(run) == run / "checkpoint-6"
    assert {name for name in names(run) if name.startswith("checkpoint-")} == {kept, "checkpoint-6"}
    writer.clear_leftovers(str(run))
    assert not {name for name in names(run) if name.startswith(".")}


def test_rotation_keeps_the_newest_and_the_best(run):
    writer.rotate_checkpoints(str(run), limit=None, best=None, last_step=6)
    writer.rotate_checkpoints(str(run), limit=3, best=None, last_step=6)
    assert names(run) >= {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    writer.rotate_checkpoints(str(run), limit=2, best=str(run / "checkpoint-2"), last_step=6)
    assert {name for name in names(run) if "checkpoint" in name} == {"checkpoint-2", "checkpoint-6"}


def test_replaced_checkpoint_comes_back_after_a_kill(run, caplog):
    (run / "checkpoint-6").rename(run / ".checkpoint-6.replaced")
    (run / ".checkpoint-4.replaced").mkdir()
    (run / ".partial" / "checkpoint-6").mkdir(parents=True)
    trainer = toy_trainer(run, **SAVED | {"max_steps": 7})
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.log_history[-1]["step"] == 7
    assert f"{run}: checkpoint-6 was not complete when a run ended, and is removed." in caplog.text
    assert not {name for name in names(run) if name.startswith(".")}


def test_checkpoint_that_was_not_completed_is_not_resumed(run, tmp_path):
    shutil.copytree(run / "checkpoint-6", run / ".partial/checkpoint-6")
    with pytest.raises(InputError, match="is where a checkpoint is written, and it was not completed; set it to"):
        toy_trainer(tmp_path / "other", **SAVED).train(resume_from_checkpoint=str(run / ".partial/checkpoint-6"))


def test_staging_folder_that_is_a_link_is_refused(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".partial").symlink_to(precious)
    with pytest.raises(InputError, match=r"\.partial is a link to .*precious.*; remove the link"):
        toy_trainer(tmp_path / "run", **SAVED).train()
    assert precious.is_dir()


@pytest.mark.parametrize(
    "error",
    [
        # All as raised on a file system without space, by a quota, or by a limit of the size of a file.
        SafetensorError("Error while serializing: I/O error: Disk quota exceeded (os error 122)"),
        SafetensorError("Error while serializing: I/O error: File too large (os error 27)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
        RuntimeError("basic_ios::clear: iostream error"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),
        OSError(errno.ENOSPC, "No space left on device"),
        CheckpointException("write", {1: (OSError(errno.ENOSPC, "No space left on device"), StackSummary())}),
    ],
    ids=["quota", "limit", "torch", "stream", "safetensors", "tokenizers", "python", "shards"],
)
def test_full_disk_is_named(tmp_path, monkeypatch, error):
    trainer = toy_trainer(tmp_path, **SAVED)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(trainer, "_save_optimizer_and_scheduler", fail)
    free = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    numbers = (errno.EDQUOT, errno.EFBIG, errno.ENOSPC)
    number = next((one for one in numbers if os.strerror(one) in str(error)), errno.ENOSPC)
    with pytest.raises(OSError, match=rf"{os.strerror(number)}.*checkpoint-2") as raised:
        trainer.train()
    assert raised.value.errno == number
    assert not list(tmp_path.iterdir())


def test_a_file_stays_as_it_was_when_it_cannot_be_written(tmp_path):
    file = tmp_path / "all_results.json"
    write_text(file, "{}")

    def fail():
        with replaced(file) as staging:
            staging.write_text("{")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"No space left on device: more than .* '.*/all_results.json'"):
        fail()
    assert names(tmp_path) == {"all_results.json"}
    assert file.read_text() == "{}"


def test_full_disk_at_the_manifest_leaves_nothing(tmp_path, monkeypatch):
    def full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer, "write_manifest", full)
    with pytest.raises(OSError, match=r"No space left on device.*checkpoint-2"):
        toy_trainer(tmp_path, **SAVED).train()
    assert not list(tmp_path.iterdir())
