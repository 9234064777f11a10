"""Every format becomes the same flat examples, from every kind of source."""

import gzip
import json
import sys

import datasets
import pytest

from mrc_data import (
    BASE_RAW,
    DOCUMENT,
    FID_RAW,
    MRQA_FLAT,
    MRQA_LINES,
    natural_questions,
    original,
    simplified,
    tydi_of_google,
    tydi_of_hub,
)
from portico.errors import InputError, MissingPackageError
from portico.mrc.config import load_examples
from portico.mrc.datasets import FORMATS, read_examples, read_hub
from portico.mrc.datasets.tydi import ByteOffsets

TYDI = {
    "id": "-7",
    "title": "Japan",
    "context": DOCUMENT,
    "question": "Which town?",
    "answers": {"text": ["大阪"], "answer_start": [21]},
    "language": "japanese",
    "target": {
        "start_positions": [-1, 21, -1],
        "end_positions": [-1, 23, -1],
        "passage_indices": [-1, 1, 1],
        "yes_no_answer": ["NONE", "NONE", "YES"],
    },
    "passage_candidates": {"start_positions": [0, 21], "end_positions": [20, 37]},
}


NATURAL = {
    "id": "797803103760793766",
    "title": "Oslo",
    "context": "<P> Oslo lies in Norway </P>",
    "question": "where is oslo",
    "answers": {"text": ["Norway"], "answer_start": [17]},
    "language": "english",
    "target": {
        "start_positions": [17, -1],
        "end_positions": [23, -1],
        "passage_indices": [0, -1],
        "yes_no_answer": ["NONE", "YES"],
    },
    "passage_candidates": {"start_positions": [0], "end_positions": [28]},
}

MRQA = {
    "id": "a1",
    "title": "",
    "context": "Oslo lies in Norway",
    "question": "where is oslo",
    "answers": {"text": ["Norway"], "answer_start": [13]},
}

BASE = {
    "id": "b1",
    "title": "",
    "context": ["Nothing.", "Oslo lies in Norway"],
    "question": "where is oslo",
    "answers": {"text": ["Norway"], "answer_start": [13]},
    "language": "UNKNOWN",
    "target": BASE_RAW["target"],
}

FID = {
    "id": "f1",
    "title": "",
    "context": ["Oslo It lies in Norway", "Nothing."],
    "question": "where is oslo",
    "answers": {"text": ["Up north."], "answer_start": [-1]},
    "input": "where is oslo",
    "output": FID_RAW["output"],
    "passages": FID_RAW["passages"],
}

CASES = {
    "TyDi QA of Google": ([tydi_of_google()], [TYDI]),
    "TyDi QA of the hub": ([tydi_of_hub(tydi_of_google())], [{**TYDI, "id": "0"}]),
    "Natural Questions of the hub": ([natural_questions()], [NATURAL]),
    "Natural Questions, original": ([original()], [NATURAL]),
    "Natural Questions, simplified": ([simplified()], [{**NATURAL, "title": ""}]),
    "MRQA, passages": (MRQA_LINES, [MRQA]),
    "MRQA of the hub": ([MRQA_FLAT], [MRQA]),
    "base schema": ([BASE_RAW], [BASE]),
    "ELI5 with passages": ([FID_RAW], [FID]),
}


def write_lines(path, records, open_file=open):
    with open_file(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)
    return path


@pytest.mark.parametrize("case", CASES)
def test_format_is_detected_in_any_source(case, tmp_path):
    records, expected = CASES[case]
    assert read_examples(write_lines(tmp_path / "a.jsonl", records)) == expected
    assert read_examples(write_lines(tmp_path / "b.jsonl.gz", records, gzip.open)) == expected
    assert read_examples(records) == expected


@pytest.mark.parametrize("case", [case for case in CASES if case != "MRQA, passages"])
def test_dataset_is_read_like_a_list(case, tmp_path):
    records, expected = CASES[case]
    dataset = datasets.Dataset.from_list(records)
    for read in (read_examples(dataset), stored(dataset, tmp_path / "stored")):
        for name in ("context", "question", "answers"):
            assert [example[name] for example in read] == [example[name] for example in expected]


def stored(dataset, folder):
    dataset.save_to_disk(folder)
    return read_examples(folder)


def test_ids_of_questions_to_train_on_may_repeat(tmp_path):
    first, second = {**BASE_RAW, "example_id": "a"}, {**BASE_RAW, "example_id": "a", "question": "Another?"}
    write_lines(tmp_path / "twice.jsonl", [first, second])
    examples = read_examples(tmp_path / "twice.jsonl", ids_may_repeat=True)
    assert [(example["id"], example["question"]) for example in examples] == [
        ("a", first["question"]),
        ("a", "Another?"),
    ]


def test_source_may_be_files_globs_and_folders(tmp_path):
    for name in ("a", "b"):
        write_lines(tmp_path / f"{name}.jsonl", [{**BASE_RAW, "example_id": name}])
    (tmp_path / "readme.txt").write_text("no data")
    for source in (tmp_path, f"{tmp_path}/*.jsonl", [tmp_path / "a.jsonl", f"{tmp_path}/b.*"]):
        assert [example["id"] for example in read_examples(source)] == ["a", "b"]
    with pytest.raises(InputError, match=r"line 1, id 'a': duplicate id, first used by line 1, id 'a'"):
        read_examples([tmp_path / "a.jsonl", write_lines(tmp_path / "c.jsonl", [{**BASE_RAW, "example_id": "a"}])])
    nothing = "gives no records; give a path, several of them"
    for source, message in ((f"{tmp_path}/*.csv", "no file matches"), (None, nothing), (5, nothing)):
        with pytest.raises(InputError, match=message):
            read_examples(source)
    (tmp_path / "d.xlsx").write_text("question,context\n")
    with pytest.raises(
        InputError, match=r"d\.xlsx: questions are read from JSON, JSON lines, CSV or parquet, not from \.xlsx"
    ):
        read_examples(tmp_path / "d.xlsx")


def test_language_in_file_names_is_prefixed_to_equal_ids(tmp_path):
    question = {"id": "q", "question": "where", "answers": [{"text": "Oslo", "answer_start": 0}]}
    content = {"data": [{"title": "t", "paragraphs": [{"context": "Oslo", "qas": [question]}]}]}
    for name in ("xquad.es.json", "xquad.zh.json", "dev-context-de-question-es.json"):
        (tmp_path / name).write_text(json.dumps(content))
    examples = read_examples(tmp_path)
    assert [(example["id"], example["language"]) for example in examples] == [
        ("de:q", "de"),
        ("es:q", "es"),
        ("zh:q", "zh"),
    ]
    (alone,) = read_examples(tmp_path / "xquad.es.json")
    assert alone["id"] == "q"


@pytest.mark.parametrize("byte", range(-1, 60))
def test_byte_offsets_agree_with_decoding(byte):
    expected = -1 if byte < 0 else len(DOCUMENT.encode()[:byte].decode(errors="replace"))
    assert ByteOffsets(DOCUMENT).char(byte) == expected


def annotated(**changes):
    return tydi_of_google(annotations=[{**tydi_of_google()["annotations"][1], **changes}])


def answered(start, end):
    return annotated(minimal_answer={"plaintext_start_byte": start, "plaintext_end_byte": end})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (answered(9, 9), r"`minimal_answer` is 6 to 6, but the context has 43 characters"),
        (annotated(passage_answer={"candidate_index": 2}), r"`candidate_index` must be an int from -1 to 1; got 2"),
        (annotated(yes_no_answer="MAYBE"), r"`yes_no_answer` must be YES, NO or NONE; got 'MAYBE'"),
        (annotated(minimal_answer=3), r"TypeError"),
        (tydi_of_google(annotations=3), r"`annotations` must be a list of objects; got 3"),
        (tydi_of_google(document_plaintext=" "), r"`document_plaintext` is empty"),
        (tydi_of_google(example_id=1.5), r"`example_id` must be a string or an integer; got 1.5"),
        (
            natural_questions(document={}),
            r"`tokens` is missing: a Natural Questions record has .*; got an empty object",
        ),
        (natural_questions(document={"tokens": []}), r"tokens 0 to 6, but the document has 0"),
        ({**MRQA_FLAT, "context": "Oslo"}, r"`char_spans` of the answer 'Norway' is 13 to 18, but .* 0 to 3"),
        (
            {
                **MRQA_FLAT,
                "detected_answers": [{**MRQA_FLAT["detected_answers"], "char_spans": {"start": [1], "end": []}}],
            },
            r"the lists in `char_spans` must have the same length; got an object with the keys `start`, `end`",
        ),
        ({**MRQA_FLAT, "qid": "\ud800"}, r"`qid` is not valid Unicode"),
        (tydi_of_google(language={}), r"`language` must be a string; got an empty object"),
        ({**FID_RAW, "output": [{"answer": 5}]}, r"`answer` must be a string; got 5"),
        ({**BASE_RAW, "context": []}, r"`context` must be a list of one or more strings; got a list of length 0"),
        ({**BASE_RAW, "target": {**BASE["target"], "passage_indices": []}}, r"four lists of the same length"),
        (
            {**BASE_RAW, "passage_candidates": {"start_positions": [0], "end_positions": []}},
            r"the lists in `passage_candidates` must have the same length",
        ),
        ({**BASE_RAW, "target": {**BASE["target"], "end_positions": [99]}}, r"`target` is 13 to 99, but .* 19 char"),
        ({**FID_RAW, "passages": []}, r"`passages` must be a list of one or more passages"),
        ({**FID_RAW, "passages": [{}]}, r"`text` is missing: a passage has text and optionally title"),
    ],
)
def test_invalid_record_is_named_and_can_be_skipped(record, message, caplog):
    with pytest.raises(InputError, match=message) as error:
        read_examples([record])
    assert "record 1" in str(error.value)
    fine = next(
        one for one in (tydi_of_google(), natural_questions(), MRQA_FLAT, BASE_RAW, FID_RAW) if set(one) <= set(record)
    )
    assert len(read_examples([fine, record], skip_invalid=True)) == 1
    assert "The dataset: left out 1 unusable record(s)" in caplog.text


def test_long_identifier_is_cut_in_messages():
    with pytest.raises(InputError, match=r"record 1, id 'x{60}\.\.\.': `context` must be") as error:
        read_examples([{**BASE_RAW, "example_id": "x" * 100_000, "context": []}])
    assert len(str(error.value)) < 400


def test_mrqa_header_is_not_a_question():
    with pytest.raises(InputError, match="the dataset is empty"):
        read_examples(MRQA_LINES[:1])
    with pytest.raises(InputError, match="not MRQA: expected a list `qas`; got an object with the keys `context`"):
        read_examples([*MRQA_LINES, {"context": "a"}])


def test_unknown_format_lists_the_known_ones():
    with pytest.raises(InputError, match="unknown format; the first record is an object with the keys `a`") as e:
        read_examples([{"a": 1}])
    assert all(name in str(e.value) for name in FORMATS)
    with pytest.raises(InputError, match=r"Unknown `format=squat`; expected one of tydiqa"):
        read_examples([BASE_RAW], format="squat")
    with pytest.raises(InputError, match="`id` is missing: a SQuAD question has id"):
        read_examples([{"a": 1}], format="squad")


HUB_RECORD = {"id": "a", "context": "Oslo", "question": "q", "answers": {"text": ["Oslo"], "answer_start": [0]}}


def test_read_hub_loads_one_split(monkeypatch):
    loaded = []

    def load_dataset(*names, split):
        loaded.append((*names, split))
        return datasets.Dataset.from_list([HUB_RECORD])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (example,) = read_hub("facebook/mlqa", "mlqa.zh.en", "test")
    assert loaded == [("facebook/mlqa", "mlqa.zh.en", "test")]
    assert example["language"] == "zh"
    data = {"dataset_name": "squad", "train_split": "train[:1]", "validation_split": "validation"}
    assert len(load_examples(data).train) == 1
    assert loaded[1:] == [("squad", None, "train[:1]"), ("squad", None, "validation")]


def test_read_hub_explains_why_loading_failed(monkeypatch):
    def load_dataset(*names, split):
        raise ConnectionError("no connection\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = r"`data.dataset_name=squad` \(configuration None, split train\) cannot be loaded: no connection to the"
    with pytest.raises(InputError, match=message):
        read_hub("squad", None, "train")


@pytest.mark.parametrize("content", [None, b"not parquet"])
def test_read_hub_explains_what_datasets_does_not(tmp_path, monkeypatch, content):
    """An empty name raises IndexError in ``datasets``, and a damaged file an error that is an ``Exception`` only."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    if content is not None:
        (tmp_path / "train.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"`data.dataset_name=.* cannot be loaded: \w.* Check the names"):
        read_hub("" if content is None else str(tmp_path), None, "train")


def test_read_hub_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError, match="the package datasets is not installed; install it with"):
        read_hub("squad", None, "train")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train_file": "a.json"}, "`data.dataset_name=squad` and `data.train_file=a.json` both name the questions"),
        ({"format": "squat"}, "Unknown `data.format=squat`"),
    ],
)
def test_contradicting_settings_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        load_examples({"dataset_name": "squad", "train_split": "train", "validation_split": "validation", **data})
