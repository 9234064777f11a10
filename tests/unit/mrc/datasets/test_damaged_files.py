"""Whatever a file holds, reading it ends with valid examples or an `InputError`, and no record is lost silently."""

import gzip
import json
from random import Random

import datasets
import pytest

from damage import HUGE, damaged_file, damaged_tree
from mrc_data import (
    BASE_RAW,
    FID_RAW,
    MRQA_FLAT,
    MRQA_LINES,
    natural_questions,
    original,
    simplified,
    tydi_of_google,
    tydi_of_hub,
)
from portico.data import defects
from portico.errors import InputError
from portico.mrc.datasets import read_examples
from portico.mrc.datasets.reader import read_questions

SQUAD = [
    {
        "title": "Oslo",
        "paragraphs": [
            {
                "context": "Oslo lies in Norway. Łódź does not.",
                "qas": [
                    {"id": "a", "question": "Where?", "answers": [{"text": "Norway", "answer_start": 13}]},
                    {"id": "b", "question": "Who?", "answers": [], "is_impossible": True, "plausible_answers": []},
                ],
            },
            {"context": "Nothing.", "qas": [{"id": "c", "question": "Why?", "answers": []}]},
        ],
    },
    {"title": "Empty", "paragraphs": []},
]
FLAT_SQUAD = [
    {"id": 7, "context": "Oslo", "question": "Where?", "answers": {"text": ["Oslo"], "answer_start": [0]}},
    {"id": 8, "context": "Oslo", "question": "When?", "answers": {"text": [], "answer_start": []}, "language": "en"},
]


def as_lines(tree):
    return "\n".join(map(json.dumps, tree)) if isinstance(tree, list) else json.dumps(tree)


SOURCES = {
    "squad, nested": ("squad", SQUAD, lambda tree: json.dumps({"version": "v2.0", "data": tree})),
    "squad, flat": ("squad", FLAT_SQUAD, as_lines),
    "mrqa, passages": ("mrqa", MRQA_LINES, as_lines),
    "mrqa, flat": ("mrqa", [MRQA_FLAT, {**MRQA_FLAT, "qid": "a2"}], json.dumps),
    "tydiqa of Google": ("tydiqa", [tydi_of_google(), tydi_of_google(example_id=2**63)], as_lines),
    "tydiqa of the hub": ("tydiqa", [tydi_of_hub(tydi_of_google())] * 2, as_lines),
    "natural_questions of the hub": ("natural_questions", [natural_questions()], as_lines),
    "natural_questions, original": ("natural_questions", [original()], as_lines),
    "natural_questions, simplified": ("natural_questions", [simplified()], as_lines),
    "base": ("base", [BASE_RAW, {**BASE_RAW, "example_id": "b2", "context": "Oslo lies in Norway"}], as_lines),
    "fid": ("fid", [FID_RAW, {**FID_RAW, "id": "f2"}], json.dumps),
}


def check_example(example):
    contexts = [example["context"]] if isinstance(example["context"], str) else example["context"]
    for text in (example["question"], *contexts):
        assert text.strip()
    for text in (example["id"], example["question"], *contexts, example.get("title", ""), example.get("language", "")):
        assert isinstance(text.encode(), bytes)
    answers = example.get("answers", {"text": [], "answer_start": []})
    for text, start in zip(*answers.values(), strict=True):
        assert text.encode()
        assert type(start) is int
        # Without a target nothing says in which of several contexts an answer is.
        is_placed = "target" in example or contexts == [example["context"]]
        assert start == -1 or not is_placed or any(context.startswith(text, start) for context in contexts)


def kept_and_left_out(reader, path, left_out, **options):
    """Return how many examples a file gave and how many records were left out, or `None` if it was refused."""
    left_out.clear()
    try:
        examples = reader(path, skip_invalid=True, **options)
    except InputError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) < 2000
        return None
    for example in examples:
        check_example(example)
    assert len({example["id"] for example in examples}) == len(examples)
    return len(examples), sum(left_out)


def num_questions(name, tree):
    """Return how many questions a tree in a format holds; what cannot be entered counts as one."""
    count = 0
    for entry in tree:
        passages = []
        if isinstance(entry, dict) and name == "squad" and "paragraphs" in entry:
            passages = entry["paragraphs"] if isinstance(entry["paragraphs"], list) else [entry["paragraphs"]]
        elif isinstance(entry, dict) and name == "mrqa" and "detected_answers" not in entry:
            passages = [] if set(entry) == {"header"} else [entry]
        else:
            count += held(entry)
        for passage in passages:
            questions = passage.get("qas") if isinstance(passage, dict) else None
            count += sum(map(held, questions)) if isinstance(questions, list) else held(passage)
    return count


def held(value):
    """Return how many questions something damaged still holds, at least 1."""
    found = []

    def look(one):
        if isinstance(one, dict) and {"question", "question_text", "answers"} & set(one):
            found.append(one)
        elif isinstance(one, dict | list):
            list(map(look, one.values() if isinstance(one, dict) else one))

    look(value)
    return len(found) or 1


def read_damaged(source, seed, path, left_out):
    """Read one damaged file in every way; return how many of these readings gave examples."""
    name, tree, write = SOURCES[source]
    rng = Random(f"{source} {seed}")
    is_tree = seed % 2 == 0
    tree = damaged_tree(rng, tree) if is_tree else tree
    path.write_bytes(write(tree).encode() if is_tree else damaged_file(rng, write(tree)))
    outcomes = []
    for reader in (read_examples, read_questions):
        for options in ({}, {"format": name}):
            outcomes.append(kept_and_left_out(reader, path, left_out, **options))
        if is_tree and outcomes[-1] is not None and isinstance(tree[0], dict):
            assert sum(outcomes[-1]) == num_questions(name, tree)
    return sum(outcome is not None for outcome in outcomes)


@pytest.mark.parametrize("num_files", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("source", SOURCES)
def test_damaged_file_is_read_or_refused(source, num_files, tmp_path, monkeypatch):
    left_out = []
    monkeypatch.setattr(defects.logger, "warning", lambda text, source, number, first: left_out.append(number))
    monkeypatch.setattr(defects.logger, "debug", lambda *message: None)
    num_read = sum(read_damaged(source, seed, tmp_path / "file.json", left_out) for seed in range(num_files))
    assert 0 < num_read < 4 * num_files  # neither all files are refused nor is the damage too small to matter


def test_every_question_of_an_unusable_passage_is_counted(tmp_path, caplog):
    passage = {"context": 5, "qas": [{"id": key, "question": "q", "answers": []} for key in "def"]}
    misspelt = {"context": "c", "questions": passage["qas"]}
    nested = {"context": "c", "qas": [passage["qas"]]}
    for paragraphs in ([passage], passage, misspelt, [misspelt], [[passage]], [nested]):
        path = tmp_path / "train.json"
        path.write_text(json.dumps({"data": [*SQUAD, {"title": "t", "paragraphs": paragraphs}]}))
        assert len(read_examples(path, skip_invalid=True)) == 3
        assert "left out 3 unusable record(s)" in caplog.text
        caplog.clear()


def test_number_too_long_to_convert_is_one_invalid_record(tmp_path):
    lines = as_lines([FLAT_SQUAD[1], FLAT_SQUAD[0]]).replace('"answer_start": [0]', f'"answer_start": [{HUGE}]')
    (tmp_path / "a.jsonl").write_text(lines)
    with pytest.raises(InputError, match=r"line 2, id 7: `answer_start` of .* must be an int; got '9999"):
        read_examples(tmp_path / "a.jsonl")
    assert len(read_examples(tmp_path / "a.jsonl", skip_invalid=True)) == 1
    # As an identifier, its digits are all that counts.
    (tmp_path / "b.jsonl").write_text(as_lines(FLAT_SQUAD).replace('"id": 7', f'"id": {HUGE}'))
    assert read_examples(tmp_path / "b.jsonl")[0]["id"] == HUGE


def test_deeply_nested_line_is_one_invalid_record(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text(as_lines(FLAT_SQUAD) + "\n" + "[" * 100_000)
    assert len(read_examples(tmp_path / "a.jsonl", skip_invalid=True)) == 2
    assert "line 3, column 1: not JSON (nested too deeply)" in caplog.text


def test_gzip_file_may_not_expand_without_end(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(as_lines(FLAT_SQUAD).encode() + b"\n")
        for _ in range(80):
            file.write(b" " * (1 << 20))
    with pytest.raises(InputError, match=r"more than 100 times as large as the gzip file, and more than 64 MiB"):
        read_examples(path)
    for read in (read_examples, read_questions):
        assert len(read(path, max_gzip_ratio=2000)) == 2


@pytest.mark.parametrize("suffix", [".json", ".arrow"])
def test_damaged_stored_dataset_is_refused(tmp_path, suffix):
    datasets.Dataset.from_list(FLAT_SQUAD[:1]).save_to_disk(tmp_path / "stored")
    for path in (tmp_path / "stored").glob(f"*{suffix}"):
        content = path.read_bytes()
        for size in (0, len(content) // 3, 2 * len(content) // 3):
            path.write_bytes(content[:size])
            with pytest.raises(InputError, match="cannot be read as a dataset saved with `datasets`"):
                read_examples(tmp_path / "stored")
        path.write_bytes(content)
    assert len(read_examples(tmp_path / "stored")) == 1


@pytest.mark.parametrize("way", ["above", "absolute", "a link"])
def test_a_stored_dataset_that_names_a_file_elsewhere_is_refused(way, tmp_path):
    """Else whoever sends a folder chooses which file of the user's is read."""
    stored = tmp_path / "stored"
    datasets.Dataset.from_list(FLAT_SQUAD[:1]).save_to_disk(stored)
    (file,) = stored.glob("*.arrow")
    elsewhere = file.rename(tmp_path / file.name)
    name = {"above": f"../{file.name}", "absolute": str(elsewhere), "a link": file.name}[way]
    if way == "a link":
        file.symlink_to(elsewhere)
    state = stored / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "_data_files": [{"filename": name}]}))
    with pytest.raises(InputError, match=r"state.json: names '.*', which is not in the folder; copy the file"):
        read_examples(stored)


def test_a_stored_dataset_with_images_is_refused(tmp_path):
    """Reading a row would open the address of its image."""
    image = {"bytes": None, "path": "http://localhost:1/x.png"}
    features = datasets.Features(
        question=datasets.Value("string"), image={"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    )
    datasets.Dataset.from_list([{"question": "Where?", "image": image}], features=features).save_to_disk(
        tmp_path / "stored"
    )
    info = tmp_path / "stored/dataset_info.json"
    content = json.loads(info.read_text())
    content["features"]["image"] = {"_type": "Image"}
    info.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"the column 'image' names images or other files, which would be opened"):
        read_examples(tmp_path / "stored")


def test_a_stored_text_beyond_its_file_is_refused(tmp_path):
    """Reading it would end the process."""
    examples = [{**FLAT_SQUAD[0], "id": str(number), "title": "Oslo"} for number in range(3)]
    datasets.Dataset.from_list(examples).save_to_disk(tmp_path / "stored")
    (path,) = (tmp_path / "stored").glob("*.arrow")
    ends = [number.to_bytes(4, "little") for number in (0, 4, 8, 12, 1 << 30)]
    content = path.read_bytes()
    assert b"".join(ends[:4]) in content
    path.write_bytes(content.replace(b"".join(ends[:4]), b"".join([*ends[:3], ends[4]])))
    with pytest.raises(InputError, match="spanned by binary"):
        read_examples(tmp_path / "stored")
