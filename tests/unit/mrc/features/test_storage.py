"""Features in files, and of streams, equal those in memory."""

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest

import fresh_process
import portico.mrc.features.storage as storage
from mrc_data import TOKENIZERS, make_examples
from parity.peers import QUIET
from portico import MRCTrainer, TrainingArguments
from portico.errors import InputError
from portico.mrc.collators import head_collator
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.features.labels import Subsampling
from portico.mrc.postprocess.span_postprocessing import SpanPostProcessing
from unit.mrc.small_readers import reader

TOKENIZER = TOKENIZERS["bert"]
SETTINGS = {"max_seq_length": 64, "doc_stride": 16}
EXAMPLES = make_examples(0)
SEVERAL = [*EXAMPLES[:7], *make_examples(1, num_contexts=3)[:5]]
HALF = Subsampling(0.5, 0.5, seed=3)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(storage, "EXAMPLES_AT_ONCE", 4)


def featurizer(**options):
    return Featurizer(TOKENIZER, **{**SETTINGS, **options})


@pytest.mark.parametrize("examples", [EXAMPLES, SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize(
    "options", [{}, {"subsampling": HALF}, {"pad_to_max_length": True}], ids=["plain", "subsampled", "padded"]
)
def test_stored_features_equal_those_in_memory(examples, options, tmp_path):
    whole, parts = featurizer(**options), featurizer(**options, cache_dir=str(tmp_path))
    assert list(parts.train_features(examples)) == list(whole.train_features(examples))
    for labels in (True, False):
        mine, expected = (one.eval_features(examples, labels=labels) for one in (parts, whole))
        assert list(mine) == list(expected)
        assert mine.example_id == expected.example_id
        for name in ("row_starts", "example_index", "char_offsets", "lengths"):
            assert np.array_equal(getattr(mine, name), getattr(expected, name))
        copied = pickle.loads(pickle.dumps(mine.remove_columns(["offset_mapping"])))
        assert list(copied) == list(expected.remove_columns(["offset_mapping"]))
    assert len([*tmp_path.glob("*/features.json")]) == 3


def test_features_are_made_once_for_each_content(tmp_path, monkeypatch):
    made = featurizer(cache_dir=str(tmp_path))
    first = list(made.train_features(EXAMPLES))
    columns = ("id", "question", "context", "answers")
    arrow = datasets.Dataset.from_list([{name: example[name] for name in columns} for example in EXAMPLES])
    changed = [{**EXAMPLES[0], "question": "Who?"}, *EXAMPLES[1:]]
    others = [
        (made, changed),
        (featurizer(cache_dir=str(tmp_path), subsampling=HALF), EXAMPLES),
        (featurizer(cache_dir=str(tmp_path), doc_stride=8), EXAMPLES),
        (
            Featurizer(
                next(one for name, one in TOKENIZERS.items() if name != "bert"), **SETTINGS, cache_dir=str(tmp_path)
            ),
            EXAMPLES,
        ),
    ]
    for number, (other, examples) in enumerate(others, start=2):
        other.train_features(examples)
        assert len([*tmp_path.glob("*/features.json")]) == number
    # From here on nothing may be made.
    monkeypatch.setattr(storage, "_write", None)
    assert list(featurizer(cache_dir=str(tmp_path)).train_features(arrow)) == first
    # Half written folders of killed runs do not count.
    monkeypatch.undo()
    folder = made.train_features(EXAMPLES).folder
    (folder / "features.json").unlink()
    for leftover in folder.iterdir():
        leftover.unlink()
    folder.rmdir()
    assert list(made.train_features(EXAMPLES)) == first


def rows_of_racing_processes(tmp_path, race):
    """Return the exit codes and the rows of two processes that get the same features at the same time."""
    script = Path(__file__).with_name("racing_processes.py")
    (tmp_path / "tokenizer").write_bytes(pickle.dumps(TOKENIZER))
    # From a process without threads: a fork of this one may find locks that nobody will ever open, and a fork of one
    # that has tokenised on several threads may wait for them.
    environment = fresh_process.environment(TOKENIZERS_PARALLELISM="false")
    command = [sys.executable, "-W", "ignore", str(script), race, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    rows = {path.stem: pickle.loads(path.read_bytes()) for path in tmp_path.glob("*.got")}
    return json.loads(ended.stdout.splitlines()[-1]), rows, sorted(path.stem for path in tmp_path.glob("*.wrote"))


@pytest.mark.slow
def test_features_are_written_by_one_of_two_processes(tmp_path):
    codes, rows, wrote = rows_of_racing_processes(tmp_path, "both")
    assert codes == [0, 0]
    assert len(wrote) == 1
    assert rows["a"] == rows["b"] == list(featurizer().train_features(EXAMPLES))


@pytest.mark.slow
def test_features_of_a_killed_process_are_written_by_the_one_that_waits(tmp_path):
    codes, rows, wrote = rows_of_racing_processes(tmp_path, "killed")
    assert codes == [-signal.SIGKILL, 0]
    assert "a" in wrote
    assert rows == {"b": list(featurizer().train_features(EXAMPLES))}
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    assert (folder / "features.json").is_file()


def test_features_are_read_without_a_lock(tmp_path, monkeypatch):
    """As from a folder that this user cannot write to."""
    first = list(featurizer(cache_dir=str(tmp_path)).train_features(EXAMPLES))
    monkeypatch.setattr(storage, "locked", None)
    assert list(featurizer(cache_dir=str(tmp_path)).train_features(EXAMPLES)) == first


def test_nothing_is_left_of_features_that_cannot_be_made(tmp_path):
    unanswerable = [{**example, "answers": {"text": [], "answer_start": []}} for example in EXAMPLES]
    with pytest.raises(InputError, match=r"Subsampling leaves none of the windows of \d+ questions to train on"):
        featurizer(cache_dir=str(tmp_path), subsampling=Subsampling(0, 0, seed=0)).train_features(unanswerable)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize("subsampling", [None, HALF], ids=["all", "half"])
def test_stream_has_the_same_rows_and_starts_anywhere(subsampling):
    made = featurizer(subsampling=subsampling)
    rows = list(made.train_features(EXAMPLES))
    columns = ("id", "question", "context", "answers")
    source = datasets.Dataset.from_list([{name: example[name] for name in columns} for example in EXAMPLES])
    stream = made.train_stream(source.to_iterable_dataset())
    # One that nothing has read yet stands at its start, as in a process that gets its batches from another.
    again = made.train_stream(source.to_iterable_dataset())
    again.load_state_dict(stream.state_dict())
    assert list(again) == rows
    states = []
    for row, expected in zip(stream, rows, strict=True):
        assert row == expected
        states.append(stream.state_dict())
    for number in range(0, len(rows), 5):
        again = made.train_stream(source.to_iterable_dataset())
        again.load_state_dict(states[number])
        assert again.state_dict() == states[number]
        assert list(again) == rows[number + 1 :]
    assert list(made.train_stream(iter(EXAMPLES))) == rows
    assert not hasattr(made.train_stream(iter(EXAMPLES)), "state_dict")


def test_run_on_stream_resumes_inside_a_part(tmp_path):
    made = reader(EXAMPLES)
    columns = ("id", "question", "context", "answers")
    source = datasets.Dataset.from_list([{name: example[name] for name in columns} for example in EXAMPLES * 3])

    def train(folder, resume=None):
        trained = reader(EXAMPLES)
        options = {**QUIET, "save_strategy": "steps", "save_steps": 2, "max_steps": 6}
        parts = Featurizer(trained.tokenizer, max_seq_length=96, doc_stride=24, cache_dir=str(tmp_path / "cache"))
        trainer = MRCTrainer(
            trained.model,
            TrainingArguments(str(folder), per_device_train_batch_size=3, **options),
            train_dataset=parts.train_stream(source.to_iterable_dataset()),
            eval_dataset=parts.eval_features(EXAMPLES, labels=True),
            eval_examples=EXAMPLES,
            data_collator=head_collator("span", made.tokenizer),
            post_process_function=SpanPostProcessing(version_2_with_negative=True),
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = train(tmp_path / "whole")
    resumed = train(tmp_path / "resumed", str(tmp_path / "whole" / "checkpoint-4"))
    assert resumed.module.run.epoch_loader.num_batches_to_skip == 0
    losses = [[log["loss"] for log in one.state.log_history if "loss" in log] for one in (whole, resumed)]
    assert losses[0] == losses[1]
    assert whole.evaluate()["eval_loss"] == resumed.evaluate()["eval_loss"]
    assert whole.answered.answers.best_texts == resumed.answered.answers.best_texts


def stored(folder):
    """Return the folder of features of an evaluation."""
    return featurizer(cache_dir=str(folder)).eval_features(EXAMPLES).folder


def with_index(folder, change):
    about = json.loads((folder / "features.json").read_text())
    change(about)
    (folder / "features.json").write_text(json.dumps(about))


FORGED = {
    "pointers": (lambda about: about["arrays"]["input_ids"].__setitem__(0, "|O"), r"input_ids is '\|O', not one of"),
    "other bytes": (lambda about: about["arrays"]["input_ids"].__setitem__(0, ">f8"), r"input_ids is '>f8', not one"),
    "a huge count": (lambda about: about["arrays"]["input_ids"][1].__setitem__(0, 1 << 50), r"has \d+ bytes, not \d+"),
    "a negative count": (lambda about: about["arrays"]["row_starts"][1].__setitem__(0, -1), r"has the shape \[-1"),
    "no shape": (lambda about: about["arrays"]["input_ids"].__setitem__(1, []), r"has the shape \[\]"),
    "a name elsewhere": (lambda about: about["arrays"].update({"../x": ["<i8", [1]]}), r"'../x' is no file in it"),
    "an absolute name": (lambda about: about["arrays"].update({"/etc/passwd": ["|u1", [1]]}), r"is no file in it"),
    "no arrays": (lambda about: about.pop("arrays"), r"'arrays'"),
    "no tokens": (lambda about: about["arrays"].pop("input_ids"), r"'input_ids'"),
    "another text": (lambda about: about["tokens"].append("id_bytes"), r"its columns are no names of columns"),
}


@pytest.mark.parametrize("name", list(FORGED))
def test_a_forged_index_of_features_is_refused(name, tmp_path):
    change, reason = FORGED[name]
    folder = stored(tmp_path)
    with_index(folder, change)
    with pytest.raises(InputError, match=rf"features.json is no index of stored features \(.*{reason}.*delete"):
        featurizer(cache_dir=str(tmp_path)).eval_features(EXAMPLES)


@pytest.mark.parametrize(("name", "value"), [("row_starts", 1 << 40), ("row_starts", -1), ("id_ends", 1 << 40)])
@pytest.mark.parametrize("row", [0, 1, -1])
def test_offsets_beyond_a_file_are_refused(name, value, row, tmp_path):
    folder = stored(tmp_path)
    offsets = np.memmap(folder / name, "<i8", "r+")
    offsets[row] = value
    offsets.flush()
    with pytest.raises(InputError, match=r"is no index of stored features"):
        storage.StoredFeatureSet(folder)


@pytest.mark.parametrize("value", [1 << 40, -1])
def test_an_example_that_is_not_there_is_refused(value, tmp_path):
    folder = stored(tmp_path)
    dtype = json.loads((folder / "features.json").read_text())["arrays"]["example_index"][0]
    index = np.memmap(folder / "example_index", dtype, "r+")
    index[0] = min(value, np.iinfo(dtype).max)
    index.flush()
    with pytest.raises(InputError, match=r"example_index names examples that it does not have"):
        storage.StoredFeatureSet(folder)


@pytest.mark.parametrize("kind", ["a link", "a pipe", "gone"])
def test_an_array_is_a_file_in_its_folder(kind, tmp_path):
    folder = stored(tmp_path)
    file = folder / "input_ids"
    if kind == "a link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
        if kind == "a pipe":
            os.mkfifo(file)
    with pytest.raises(InputError, match=r"is no index of stored features"):
        storage.StoredFeatureSet(folder)


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    folder = stored(tmp_path / "cache")
    (folder / "features.json").unlink()
    lock = folder.with_name(f"{folder.name}.lock")
    lock.unlink(missing_ok=True)
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=str(lock)):
        featurizer(cache_dir=str(tmp_path / "cache")).eval_features(EXAMPLES)
    assert not (tmp_path / "elsewhere").exists()
