import gzip
import json
import logging

import datasets
import numpy as np
import pandas
import pytest

from mrc_data import TOKENIZERS
from portico.errors import InputError
from portico.mrc import Featurizer
from portico.mrc.datasets import has_unanswerable, read_examples, read_squad

CONTEXT = "Zoë Łuk was born in Turku in 1901. She left Turku in 1920."


def flat(**changes):
    record = {
        "id": "q1",
        "title": "Zoë",
        "context": CONTEXT,
        "question": "Where was Zoë Łuk born?",
        "answers": {"text": ["Turku"], "answer_start": [CONTEXT.index("Turku")]},
    }
    return {key: value for key, value in {**record, **changes}.items() if value is not ...}


def nested(*questions, title="Zoë", context=CONTEXT):
    return {
        "version": "v2.0",
        "data": [{"title": title, "paragraphs": [{"context": context, "qas": list(questions)}]}],
    }


def question(**changes):
    answers = [{"text": "Turku", "answer_start": CONTEXT.index("Turku")}]
    return {"id": "q1", "question": "Where was Zoë Łuk born?", "answers": answers, "is_impossible": False, **changes}


IMPOSSIBLE = {"id": "q2", "answers": [], "is_impossible": True, "plausible_answers": [{"text": "1901"}]}


@pytest.fixture
def written(tmp_path):
    def write(content, name="data.json"):
        path = tmp_path / name
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(data)
        return path

    return write


def json_lines(*records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def test_nested_files_become_flat_records(written):
    assert read_squad(written(nested(question(), question(**IMPOSSIBLE)))) == [
        flat(),
        flat(id="q2", answers={"text": [], "answer_start": []}),
    ]


@pytest.mark.parametrize(
    "content",
    [
        json_lines(flat(), flat(id="q2")),
        b"\n\n" + json_lines(flat()) + b"\n" + json_lines(flat(id="q2")),
        json.dumps([flat(), flat(id="q2")]).encode(),
        json.dumps({"data": [flat(), flat(id="q2")]}, indent=2).encode(),
        b"\xef\xbb\xbf" + json_lines(flat(), flat(id="q2")),
        gzip.compress(json_lines(flat(), flat(id="q2"))),
        json_lines(flat(), flat(id="q2")).replace(b"\n", b"\r\n"),
        json_lines(*nested(question())["data"], flat(id="q2")),
    ],
    ids=["lines", "blank lines", "array", "data of records", "byte order mark", "gzip", "crlf", "articles in lines"],
)
def test_every_layout_has_the_same_records(written, content):
    assert read_squad(written(content)) == [flat(), flat(id="q2")]


def test_single_record_may_span_several_lines(written):
    assert read_squad(written(json.dumps(flat(), indent=2).encode())) == [flat()]


def test_line_separators_inside_a_passage_do_not_split_a_record(written):
    context = "One\u2028two\u0085three"
    answers = {"text": ["three"], "answer_start": [8]}
    records = read_squad(written(json_lines(flat(context=context, answers=answers), flat(id="q2"))))
    assert [record["context"] for record in records] == [context, CONTEXT]


def test_other_fields_are_kept_and_integer_ids_become_strings(written):
    (record,) = read_squad(written([flat(id=7, title=..., question_type="place")]))
    assert record == flat(id="7", title="", question_type="place")


def test_impossible_question_needs_no_answers_field(written):
    (record,) = read_squad(written([flat(answers=..., is_impossible=True)]))
    assert record["answers"] == {"text": [], "answer_start": []}


def test_has_unanswerable(written):
    assert not has_unanswerable([flat()])
    assert has_unanswerable([flat(), flat(answers={"text": [], "answer_start": []})])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (flat(id=...), r"`id` is missing: .*; got an object with the keys `title`, `context`"),
        (flat(context=...), r"`context` is missing"),
        (flat(question=...), r"`question` is missing"),
        (flat(id=None), r"`id` must be a string or an integer; got null"),
        (flat(id=True), r"`id` must be a string or an integer; got True"),
        (flat(question=" "), r"`question` is empty"),
        (flat(context=["a"]), r"`context` must be a string; got a list of length 1"),
        (flat(question="\ud800?"), r"half of a surrogate pair at character 0"),
        (flat(answers=...), r"`answers` must be .*; got null"),
        (flat(answers="Turku"), r"`answers` must be .*; got 'Turku'"),
        (flat(answers={"text": ["Turku"], "answer_start": []}), r"two lists of the same length"),
        (flat(answers=["Turku"]), r"`answers` must be .*; got a list of length 1"),
        (flat(answers=[{"text": "", "answer_start": 0}]), r"`text` of an answer must be a non-empty string"),
        (flat(answers=[{"text": "Turku"}]), r"of the answer 'Turku' must be an int; got null"),
        (flat(answers=[{"text": "Turku", "answer_start": 20.5}]), r"must be an int; got 20.5"),
        (flat(is_impossible=True), r"`is_impossible` is true, but `answers` holds 1"),
        (flat(is_impossible=False, answers=[]), r"`is_impossible` is false, but `answers` holds 0"),
        ("text", r"a record must be a JSON object; got 'text'"),
        (flat(answers=[{"text": "Oslo", "answer_start": 24}]), r"the answer does not occur in the context"),
        *(
            (
                flat(answers=[{"text": "Turku", "answer_start": start}]),
                rf"`answer_start` {start} of the answer 'Turku' is wrong: the context has {there}",
            )
            for start, there in (
                (21, r"'urku ' there, and the answer occurs at 20, 44\."),
                (43, r"' Turk' there, and the answer occurs at 44, 20\."),
                (-1, r"the characters 0 to 57, and"),
                (20 - len(CONTEXT), r"the characters 0 to 57, and"),
                (900, r"the characters 0 to 57, and"),
            )
        ),
    ],
)
def test_invalid_record_is_named_with_the_reason(written, record, message):
    path = written([flat(id="fine"), record])
    with pytest.raises(InputError, match=message) as error:
        read_squad(path)
    assert str(error.value).startswith(f"{path}, record 2")
    assert "\n" not in str(error.value)
    assert "`skip_invalid=True` (`data.skip_invalid=true` on the command line)" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"the file is empty"),
        (b" \n\n", r"the file is empty"),
        (b'{"data": [\n  {"a": }\n]}', r"line 2, column 9: not JSON \(Expecting value, at '}'\)"),
        (b'{"data": [', r"line 1, column 11: not JSON .*, at the end of the file"),
        (b'{"data": []}\n{"data": []}\n', r"line 2, column 1: not JSON \(Extra data"),
        (b'{"data": []}', r"the dataset is empty"),
        (b'{"data": {"train": []}}', r"must be a list; got an object with the keys `train`"),
        (b"3", r"must be a list; got 3"),
        (b'{"rows": []}', r"line 1: `id` is missing: a SQuAD question has .*; got an object with the keys `rows`"),
        (b"{}", r"`id` is missing: .*; got an empty object"),
        (b'{"data": [{"title": "A", "paragraphs": 3}]}', r"article 1 \('A'\): .*expected a list `paragraphs`; got 3"),
        (
            b'{"data": [{"paragraphs": [{"context": "A"}]}]}',
            r"paragraph 1: .*expected a list `qas`; got an object with the",
        ),
        (b'{"data": [{"paragraphs": [3]}]}', r"article 1, paragraph 1: .*expected a list `qas`; got 3"),
        (
            json.dumps(nested(question(), question(id="q9", question=""))).encode(),
            r"article 1 \('Zoë'\), paragraph 1, question 2, id 'q9': `question` is empty",
        ),
        (
            json_lines(flat(), flat(id="q2"), flat()),
            r"line 3, id 'q1': duplicate id, first used by line 1, id 'q1'",
        ),
        (json_lines(flat()) + b'{"id": \n' + json_lines(flat(id="q2")), r"line 2, column 8: not JSON"),
        (b"[" * 100_000, r"nested too deeply"),
        (b'{"id": 1\xe9}', r"not UTF-8 \(byte 0xe9"),
        (gzip.compress(b"{}" * 100, mtime=0)[:-9], r"cannot be read \(Compressed file ended"),
    ],
)
def test_file_that_is_not_squad_is_refused(written, content, message):
    path = written(content)
    with pytest.raises(InputError, match=message) as error:
        read_squad(path)
    assert str(path) in str(error.value)


def test_missing_files_and_folders_are_reported(written, tmp_path):
    with pytest.raises(InputError, match=r"the folder has no file ending in \.json, \.jsonl"):
        read_squad(tmp_path)
    written([], name="squad-train.json")
    for name, message in (
        ("squad-trian.json", r"no such file; in .* did you mean squad-train\.json\?"),
        ("xyz", r"no file has a similar name"),
        ("nowhere/train.json", r"no folder .*nowhere; relative paths start at"),
    ):
        with pytest.raises(InputError, match=message):
            read_squad(tmp_path / name)


def test_skip_invalid_keeps_valid_records_and_warns_once(written, caplog):
    broken = [flat(id=str(number), question="") for number in range(5)]
    path = written(json_lines(flat(), *broken, flat()) + b"{\n" + json_lines(flat(id="q2")))
    with caplog.at_level(logging.WARNING):
        records = read_squad(path, skip_invalid=True)
    assert records == [flat(), flat(id="q2")]
    (warning,) = caplog.messages
    assert f"{path}: left out 7 unusable record(s)" in warning
    assert "line 2, id '0'" in warning


def test_skip_invalid_keeps_the_other_paragraphs(written):
    content = nested(question())
    content["data"][0]["paragraphs"].insert(0, {"context": CONTEXT})
    assert read_squad(written(content), skip_invalid=True) == [flat()]


def test_skipping_every_record_is_an_error(written):
    with pytest.raises(InputError, match=r"none of the 1 record\(s\) is valid; first: record 1"):
        read_squad(written([flat(question="")]), skip_invalid=True)


@pytest.mark.parametrize("flag", [True, "true", "True", " TRUE", "yes", 1, "1", 1.0, np.True_, np.int64(1)])
def test_a_flag_is_read_in_every_form(flag):
    with pytest.raises(InputError, match="`is_impossible` is true, but `answers` holds 1"):
        read_examples([flat(is_impossible=flag)])
    nothing = {"text": [], "answer_start": []}
    for answers in (None, [], {"text": [""], "answer_start": [-1]}, {"text": None, "answer_start": None}):
        assert read_examples([flat(is_impossible=flag, answers=answers)])[0]["answers"] == nothing


@pytest.mark.parametrize("flag", [False, "false", "no", 0, "0", np.False_, None, "", float("nan")])
def test_a_flag_that_is_not_set_leaves_the_answer(flag):
    assert read_examples([flat(is_impossible=flag)])[0]["answers"] == {"text": ["Turku"], "answer_start": [20]}


@pytest.mark.parametrize("flag", ["perhaps", 2, [True], "None"])
def test_another_flag_is_refused_by_name(flag):
    with pytest.raises(InputError, match="`is_impossible` must be true or false; got"):
        read_examples([flat(is_impossible=flag)])


@pytest.mark.parametrize(
    "answers",
    [
        {"text": "Turku", "answer_start": 20},
        {"text": ("Turku",), "answer_start": (20,)},
        {"text": np.array(["Turku"], object), "answer_start": np.array([20])},
        {"text": ["Turku"], "answer_start": ["20"]},
        {"text": ["Turku", ""], "answer_start": [20.0, -1]},
        [{"text": np.str_("Turku"), "answer_start": np.int32(20)}],
    ],
)
def test_answers_are_read_in_every_form(answers):
    (example,) = read_examples([flat(answers=answers)])
    assert example["answers"] == {"text": ["Turku"], "answer_start": [20]}
    assert type(example["answers"]["answer_start"][0]) is int
    assert has_unanswerable([flat(answers=answers)]) is False
    tokenizer = TOKENIZERS["bert"]
    rows = [Featurizer(tokenizer).train_features([flat(answers=one)])[0] for one in (answers, example["answers"])]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("answers", ["Turku", ["Turku"], [20], {"text": "Turku", "answer_start": [20, 21]}])
def test_answers_without_places_are_refused(answers):
    for read in (lambda one: read_examples([one]), lambda one: Featurizer(TOKENIZERS["bert"]).train_features([one])):
        with pytest.raises(InputError, match=r"`answers` must be .*two lists of the same length"):
            read(flat(answers=answers))


NAMES = ["target", "passage_candidates", "annotations", "detected_answers", "passages", "paragraphs"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1, "train", ["a"], {"b": 1}, None])
def test_a_field_with_the_name_of_another_format_belongs_to_the_user(name, value):
    assert read_examples([flat(**{name: value, "input": "x"})])[0]["answers"] == {
        "text": ["Turku"],
        "answer_start": [20],
    }
    features = Featurizer(TOKENIZERS["bert"]).train_features([flat(**{name: value})])
    assert features[0] == Featurizer(TOKENIZERS["bert"]).train_features([flat()])[0]


PARAGRAPH = {"context": CONTEXT, "qas": [question(), question(id="q2", is_impossible=True, answers=[])]}


LINES = json_lines(PARAGRAPH, {**PARAGRAPH, "qas": []})


@pytest.mark.parametrize("content", [[PARAGRAPH], {"data": [PARAGRAPH]}, LINES], ids=["list", "data", "lines"])
@pytest.mark.parametrize("form", [None, "squad"])
def test_paragraphs_may_stand_without_articles(written, content, form):
    first, second = read_examples(written(content), format=form)
    assert (first["answers"], second["answers"]) == (flat()["answers"], {"text": [], "answer_start": []})


def test_tables_are_read(tmp_path):
    expected = read_examples([flat()])
    table = datasets.Dataset.from_list([flat()])
    table.to_csv(tmp_path / "a.csv")
    table.to_parquet(tmp_path / "b.parquet")
    frame = table.to_pandas()
    frame.to_csv(tmp_path / "c.tsv", sep="\t")
    pandas.json_normalize([flat(is_impossible=False)]).to_csv(tmp_path / "d.csv", index=False)
    for source in (frame, frame.to_dict("records"), *sorted(tmp_path.iterdir())):
        example = read_examples(source)[0]
        assert {name: example[name] for name in expected[0]} == expected[0], source
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match=r"b\.parquet: cannot be read as a parquet file"):
        read_examples(tmp_path / "b.parquet")


def test_a_folder_of_several_splits_is_refused_with_their_folders(tmp_path):
    table = datasets.Dataset.from_list([flat()])
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(tmp_path / "both")
    with pytest.raises(InputError, match=r"both: holds a dataset of several splits; name the folder .*test, .*train"):
        read_examples(tmp_path / "both")
    assert len(read_examples(tmp_path / "both" / "train")) == 1
