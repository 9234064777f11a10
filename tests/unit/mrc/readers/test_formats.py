"""Every format becomes the same flat records, whatever it comes in."""

import gzip
import json

import datasets
import pytest

from mrc_records import DOCUMENT, natural_questions, tydi_of_google, tydi_of_hub
from portico.errors import InputError
from portico.mrc.readers import FORMATS, read_examples
from portico.mrc.readers.byte_offsets import ByteOffsets

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


def simplified():
    raw = natural_questions()
    words = {-1: "NONE", 1: "YES"}
    annotations = [{**one, "yes_no_answer": words[one["yes_no_answer"]]} for one in raw["annotations"]]
    return {
        "example_id": 797803103760793766,
        "question_text": "where is oslo",
        "document_text": "<P> Oslo lies in Norway </P>",
        "long_answer_candidates": raw["long_answer_candidates"],
        "annotations": annotations,
    }


def original():
    raw = simplified()
    del raw["document_text"]
    return {**raw, "document_title": "Oslo", "document_tokens": natural_questions()["document"]["tokens"]}


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

ANSWER = {"text": "Norway", "char_spans": [[13, 18]], "token_spans": [[3, 3]]}
MRQA_QUESTION = {"qid": "a1", "question": "where is oslo", "answers": ["Norway"], "detected_answers": [ANSWER]}
MRQA_LINES = [
    {"header": {"dataset": "SQuAD", "split": "train"}},
    {"context": "Oslo lies in Norway", "context_tokens": [], "qas": [MRQA_QUESTION]},
]
MRQA_FLAT = {
    **MRQA_QUESTION,
    "context": "Oslo lies in Norway",
    "detected_answers": {"text": ["Norway"], "char_spans": [{"start": [13], "end": [18]}]},
}
MRQA = {
    "id": "a1",
    "title": "",
    "context": "Oslo lies in Norway",
    "question": "where is oslo",
    "answers": {"text": ["Norway"], "answer_start": [13]},
}

BASE_RAW = {
    "example_id": "b1",
    "question": "where is oslo",
    "context": ["Nothing.", "Oslo lies in Norway"],
    "target": {"start_positions": [13], "end_positions": [19], "passage_indices": [1], "yes_no_answer": ["NONE"]},
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

FID_RAW = {
    "id": "f1",
    "input": "where is oslo",
    "output": [{"answer": "Up north.", "meta": {"score": 4}}, {"answer": ""}],
    "passages": [{"title": "Oslo", "text": "It lies in Norway"}, {"text": "Nothing."}],
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
def test_a_format_is_recognised_in_any_source(case, tmp_path):
    records, expected = CASES[case]
    assert read_examples(write_lines(tmp_path / "a.jsonl", records)) == expected
    assert read_examples(write_lines(tmp_path / "b.jsonl.gz", records, gzip.open)) == expected
    assert read_examples(records) == expected


@pytest.mark.parametrize("case", [case for case in CASES if case != "MRQA, passages"])
def test_a_dataset_is_read_like_a_list(case, tmp_path):
    records, expected = CASES[case]
    dataset = datasets.Dataset.from_list(records)
    for read in (read_examples(dataset), stored(dataset, tmp_path / "stored")):
        for name in ("context", "question", "answers"):
            assert [example[name] for example in read] == [example[name] for example in expected]


def stored(dataset, folder):
    dataset.save_to_disk(folder)
    return read_examples(folder)


def test_files_globs_folders_and_lists_of_them(tmp_path):
    for name in ("a", "b"):
        write_lines(tmp_path / f"{name}.jsonl", [{**BASE_RAW, "example_id": name}])
    (tmp_path / "readme.txt").write_text("no data")
    for source in (tmp_path, f"{tmp_path}/*.jsonl", [tmp_path / "a.jsonl", f"{tmp_path}/b.*"]):
        assert [example["id"] for example in read_examples(source)] == ["a", "b"]
    with pytest.raises(InputError, match=r"record 1, id 'a': the id was used before|line 1, id 'a': the id was used"):
        read_examples([tmp_path / "a.jsonl", write_lines(tmp_path / "c.jsonl", [{**BASE_RAW, "example_id": "a"}])])
    with pytest.raises(InputError, match=r"no file has such a name"):
        read_examples(f"{tmp_path}/*.csv")


def test_languages_of_file_names_tell_equal_ids_apart(tmp_path):
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
def test_bytes_become_characters_as_by_decoding(byte):
    expected = -1 if byte < 0 else len(DOCUMENT.encode()[:byte].decode(errors="replace"))
    assert ByteOffsets(DOCUMENT).char(byte) == expected


def annotated(**changes):
    return tydi_of_google(annotations=[{**tydi_of_google()["annotations"][1], **changes}])


def answered(start, end):
    return annotated(minimal_answer={"plaintext_start_byte": start, "plaintext_end_byte": end})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (answered(9, 9), r"`minimal_answer` is 6 to 6, but the text has 43 characters"),
        (annotated(passage_answer={"candidate_index": 2}), r"below the number of passages, 2, but 2 was found"),
        (annotated(yes_no_answer="MAYBE"), r"`yes_no_answer` must be YES, NO or NONE, but 'MAYBE' was found"),
        (annotated(minimal_answer=3), r"TypeError"),
        (tydi_of_google(annotations=3), r"`annotations` must be a list of objects, but 3 was found"),
        (tydi_of_google(document_plaintext=" "), r"`document_plaintext` is empty"),
        (tydi_of_google(example_id=1.5), r"`example_id` must be a string, but 1.5 was found"),
        (
            natural_questions(document={}),
            r"not a Natural Questions record: `tokens` is missing, an empty object was found; it",
        ),
        (natural_questions(document={"tokens": []}), r"tokens 0 to 6, but the document has 0"),
        ({**MRQA_FLAT, "context": "Oslo"}, r"`char_spans` of the answer 'Norway' is 13 to 18, but .* 0 to 3"),
        ({**BASE_RAW, "context": []}, r"`context` must be a list of one or more texts"),
        ({**BASE_RAW, "target": {**BASE["target"], "passage_indices": []}}, r"four lists of one length"),
        ({**BASE_RAW, "target": {**BASE["target"], "end_positions": [99]}}, r"`target` is 13 to 99, but .* 19 char"),
        ({**FID_RAW, "passages": []}, r"`passages` must be a list of one or more passages"),
        ({**FID_RAW, "passages": [{}]}, r"not a passage: `text` is missing"),
    ],
)
def test_a_defective_record_is_named_and_can_be_left_out(record, message, caplog):
    with pytest.raises(InputError, match=message) as error:
        read_examples([record])
    assert "record 1" in str(error.value)
    fine = next(
        one for one in (tydi_of_google(), natural_questions(), MRQA_FLAT, BASE_RAW, FID_RAW) if set(one) == set(record)
    )
    assert len(read_examples([fine, record], skip_invalid=True)) == 1
    assert "The data set: left out 1 unusable record(s)" in caplog.text


def test_a_header_alone_is_no_data():
    with pytest.raises(InputError, match="the data set is empty"):
        read_examples(MRQA_LINES[:1])
    with pytest.raises(InputError, match="not MRQA: a list `qas` is wanted, but an object with the keys `context`"):
        read_examples([*MRQA_LINES, {"context": "a"}])


def test_an_unknown_form_lists_the_formats():
    with pytest.raises(InputError, match="no known format of questions: an object with the keys `a` was found") as e:
        read_examples([{"a": 1}])
    assert all(name in str(e.value) for name in FORMATS)
    with pytest.raises(InputError, match=r"`data\.format=squat` is no known format of questions; set it to one"):
        read_examples([BASE_RAW], format="squat")
    with pytest.raises(InputError, match="not a SQuAD question: `id` is missing"):
        read_examples([{"a": 1}], format="squad")
