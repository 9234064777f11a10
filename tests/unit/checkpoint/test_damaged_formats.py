"""Every file that a run may read, damaged: it is read, or refused by an ``InputError``, and soon."""

import io
import json
import logging
import os
import random
import signal
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

import datasets
import numpy as np
import optuna
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers.utils.logging import disable_progress_bar, enable_progress_bar

from damage import damaged_bytes, damaged_file, damaged_tree
from models import Line, toy_arguments, toy_trainer
from portico.checkpoint import resume
from portico.checkpoint.background import BackgroundWriter
from portico.checkpoint.manifest import MANIFEST_FILE, POSITION_FILE, refuse_damaged, write_manifest
from portico.checkpoint.sharded import OPTIMIZER_FOLDER, optimizer_by_name, save_optimizer_shards
from portico.checkpoint.weights import load_weights
from portico.checkpoint.writer import CheckpointParts
from portico.cli.jobs import SweepJob
from portico.cli.studies import open_storage
from portico.errors import InputError
from portico.gradient_descent.checkpointer import BestWeights, Checkpointer
from portico.mrc.datasets import read_examples
from portico.mrc.models.loading import load_trained_reader
from portico.mrc.models.small_bert import new_reader
from unit.gradient_descent.plain_training import make_trainer

SHARE = float(os.environ.get("PORTICO_FAULTS", "2")) / 100  # of the figures of a release
FILES = 100_000  # of each family
SECONDS = 60  # to read a file
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


# ---- A folder of each format, and how it is read ----


@cache
def arguments():
    """Return the arguments of every run here: checking them takes longer than reading a file."""
    return toy_arguments("run")


def parts_of_a_run():
    model = Line()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return CheckpointParts(
        args=arguments(),
        async_save=False,
        model=model,
        optimizer=optimizer,
        lr_scheduler=LambdaLR(optimizer, lambda step: 1 / (step + 1)),
        accelerator=None,
        background=BackgroundWriter(),
    )


def trained_parts(folder):
    parts = parts_of_a_run()
    parts.model(torch.ones(2, 3))["logits"].sum().backward()
    parts.optimizer.step()
    parts.lr_scheduler.step()
    torch.save(parts.lr_scheduler.state_dict(), folder / "scheduler.pt")
    return parts


def optimizer_shards(folder):
    parts = trained_parts(folder)
    save_optimizer_shards(optimizer_by_name(parts.model, parts.optimizer), folder, None)
    write_manifest(folder)  # a model that is not sharded reads listed shards only


def optimizer_file(folder):
    torch.save(trained_parts(folder).optimizer.state_dict(), folder / "optimizer.pt")


def optimizer_of_fsdp(folder):
    state = trained_parts(folder).optimizer.state_dict()
    names = ["linear.weight", "linear.bias"]
    state["state"] = dict(zip(names, state["state"].values(), strict=True))
    state["param_groups"][0]["params"] = names
    torch.save(state, folder / "optimizer.bin")


def read_optimizer(folder):
    parts = parts_of_a_run()
    resume.load_optimizer_and_scheduler(parts, folder, lambda state: state)


def pickled_weights(folder):
    torch.save(Line().state_dict(), folder / "pytorch_model.bin")


def sharded_weights(folder):
    weights = Line().state_dict()
    names = {name: f"pytorch_model-0000{number}-of-00002.bin" for number, name in enumerate(weights, start=1)}
    for name, file in names.items():
        torch.save({name: weights[name]}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def read_weights(folder):
    load_weights(Line(), str(folder))


def position(folder):
    resume.save_position(str(folder), (3, 128))


def whole_checkpoint(folder):
    toy_trainer(folder.parent / "run", max_steps=1, save_strategy="steps", save_steps=1).train()
    (folder.parent / "run/checkpoint-1").rename(folder)


def read_manifest(folder):
    refuse_damaged(folder)
    # As when the run is resumed: what the manifest does not list is not read.
    load_weights(Line(), str(folder))
    resume.load_rng_state(str(folder), arguments())
    resume.read_position(str(folder))


@cache
def allennlp_model():
    return make_trainer(None, num_epochs=1).model


def allennlp(folder):
    make_trainer(folder, num_epochs=1).train()


def read_allennlp(folder):
    assert Checkpointer(folder).load_checkpoint() is not None
    BestWeights(folder).load(allennlp_model())


QUESTION = {"context": "Oslo", "question": "Where?", "answers": {"text": ["Oslo"], "answer_start": [0]}}


def stored_dataset(folder):
    datasets.Dataset.from_list([{"id": str(number), **QUESTION} for number in range(3)]).save_to_disk(folder)


def reader(folder):
    made = new_reader(["Ada lives in Paris."], vocab_size=60, max_length=32, model=SMALL)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)


def job(folder):
    SweepJob(
        folder=folder,
        number=1,
        overrides=["args.seed=7"],
        goals={"eval_f1": "max"},
        objective={"eval_f1": 0.5},
        evaluations=[[2, 0.5]],
        trial={"storage": "study.journal", "study": "search", "id": 1, "pruner": {"_target_": "NopPruner"}},
    ).write()


def journal(folder):
    study = optuna.create_study(storage=open_storage(str(folder / "study.journal")), study_name="search")
    study.optimize(lambda trial: trial.suggest_float("rate", 0, 1), n_trials=3)


def read_journal(folder):
    for damaged in folder.glob("*.damaged"):
        damaged.unlink()
    open_storage(str(folder / "study.journal"))


FORMATS = {
    "sharded optimizer": (optimizer_shards, read_optimizer, [f"{OPTIMIZER_FOLDER}/*", f"{OPTIMIZER_FOLDER}/.*"]),
    "optimizer": (optimizer_file, read_optimizer, ["*.pt"]),
    "optimizer of FSDP": (optimizer_of_fsdp, read_optimizer, ["*.bin"]),
    "pickled weights": (pickled_weights, read_weights, ["*.bin"]),
    "pickled shards": (sharded_weights, read_weights, ["*.bin", "*.json"]),
    "position": (position, lambda folder: resume.read_position(str(folder)), [POSITION_FILE]),
    "manifest": (whole_checkpoint, read_manifest, [MANIFEST_FILE]),
    "AllenNLP": (allennlp, read_allennlp, ["*.th"]),
    "Arrow": (stored_dataset, read_examples, ["*.arrow", "*.json"]),
    "reader": (reader, lambda folder: load_trained_reader(str(folder)), ["*.json"]),
    "job": (job, SweepJob.read, ["job.json"]),
    "journal": (journal, read_journal, ["study.journal"]),
}


class TooLong(BaseException):
    pass


@contextmanager
def within(seconds):
    def late(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damaged(rng, content, is_json):
    if is_json and rng.random() < 0.5:
        tree = damaged_tree(rng, json.loads(content))
        return json.dumps(tree).encode(errors="surrogatepass")
    if is_json and rng.random() < 0.5:
        return damaged_file(rng, content.decode())
    return damaged_bytes(rng, content)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_files", [40, pytest.param(round(FILES * SHARE), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_or_refused(name, num_files, in_memory):
    make, read, patterns = FORMATS[name]
    folder = in_memory / "made"
    if name != "manifest":
        folder.mkdir()
    make(folder)
    files = {file: file.read_bytes() for pattern in patterns for file in sorted(folder.glob(pattern))}
    num_read, refusal = 0, ""
    with random_states_kept(), quiet():
        read(folder)
        for seed in range(num_files):
            rng = Random(f"{name} {seed}")
            file = rng.choice([*files])
            file.write_bytes(damaged(rng, files[file], is_json=file.suffix == ".json"))
            try:
                with within(SECONDS):
                    read(folder)
                num_read += 1
            except InputError as error:
                refusal = str(error)
            except BaseException as error:
                raise AssertionError(f"{name}, seed {seed}, {file.name}: {type(error).__name__}: {error}") from error
            assert refusal.isprintable(), seed
            file.write_bytes(files[file])
    print(name, "damaged files:", seed + 1, "read:", num_read)
    assert num_read < seed + 1


def stored(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def badly_compressed():
    """Return an archive whose table of contents is no stream of zlib."""
    file, name = io.BytesIO(), "archive/data.pkl"
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        archive.writestr(name, b"\x80\x02}.")
    content = bytearray(file.getvalue())
    content[30 + len(name)] = 0xFF  # after the header of the first file
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "file", "content", "why"),
    [
        ("pickled weights", "pytorch_model.bin", badly_compressed(), "pytorch_model.bin cannot be read: Error -3"),
        ("pickled weights", "pytorch_model.bin", stored([1]), "pytorch_model.bin cannot be read: Expected state_dict"),
        (
            "pickled shards",
            "pytorch_model.bin.index.json",
            b'{"weight_map": {"linear.weight": "../shard.bin"}}',
            r"index.json lists '../shard.bin', which is not next to it; restore the file",
        ),
        (
            "reader",
            "tokenizer_config.json",
            b'{"tokenizer_class": "BertTokenizer", "unk_token": ""}',
            "with its tokenizer .maximum recursion depth",
        ),
        ("AllenNLP", "best.th", b"", r"best.th has no weights of this model \(.*\); restore the file, or delete it"),
    ],
)
def test_damage_that_chance_rarely_makes_is_refused(name, file, content, why, tmp_path):
    make, read, _ = FORMATS[name]
    make(tmp_path)
    assert (tmp_path / file).is_file()
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=why):
        read(tmp_path)


@pytest.fixture
def in_memory():
    """A folder in memory, where the system has one: on a disk, writing takes longer than reading."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@contextmanager
def quiet():
    """Log nothing, for pytest keeps every line, and show no progress bars."""
    logging.disable()
    disable_progress_bar()
    try:
        yield
    finally:
        enable_progress_bar()
        logging.disable(logging.NOTSET)


@contextmanager
def random_states_kept():
    states = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    try:
        yield
    finally:
        for put, state in zip((random.setstate, np.random.set_state, torch.set_rng_state), states, strict=True):
            put(state)
