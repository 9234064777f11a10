import json
from contextlib import suppress
from random import Random

import pytest
import yaml

from damage import damaged_file, damaged_tree
from portico.commands.report import main
from portico.errors import InputError
from portico.mrc.corpus import generate
from portico.mrc.report import record_run
from portico.mrc.report.command import read_run, write_page
from report_pages import HOSTILE, Page, record

CONTEXT = "Zoë was born in Turku in 1901 and left Turku in 1920."
DATA = {"num_train": 4, "num_validation": 6, "seed": 3, "train_file": None, "validation_file": None}


def squad(answers_of_id):
    """Return a SQuAD document with one question for each id."""
    questions = [
        {
            "id": key,
            "question": f"Where, {key}?",
            "answers": [{"text": text, "answer_start": CONTEXT.index(text)} for text in answers],
            "is_impossible": not answers,
        }
        for key, answers in answers_of_id.items()
    ]
    return {"data": [{"title": "Zoë", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]}


GOLDS = {"a": ["Turku"], "b": ["1901"], "c": []}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(value) if path.suffix == ".yaml" else json.dumps(value)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "dev.json", squad(GOLDS))


@pytest.fixture
def make_run(tmp_path, data):
    def make(name="run", predictions=None, **files):
        folder = tmp_path / name
        predictions = {"a": "Turku", "b": "1901", "c": ""} if predictions is None else predictions
        write(folder / "eval_predictions.json", predictions)
        settings = {"train_file": str(data), "validation_file": str(data)}
        write(folder / "config.yaml", {"name": "mrc", "data": settings, "args": {"seed": 1}})
        for path, content in files.items():
            write(folder / path, content)
        return folder

    return make


def test_every_file_of_a_folder_is_read(make_run):
    nbest = {key: [{"text": "Turku", "probability": 0.8, "start_logit": 1.0, "end_logit": 2.0}] for key in GOLDS}
    run = make_run(
        **{
            "eval_nbest_predictions.json": nbest,
            "eval_null_odds.json": dict.fromkeys(GOLDS, -2.0),
            "eval_results.json": {"eval_f1": 90.0},
            "train_results.json": {"train_runtime": 3.0},
            "trainer_state.json": {"log_history": [{"step": 1, "loss": 2.0}]},
        }
    )
    read = read_run(run)
    assert [result.id for result in read.results] == ["a", "b", "c"]
    assert [result.exact for result in read.results] == [1.0, 1.0, 1.0]
    assert read.results[0].nbest[0].score == 3.0
    assert read.results[0].null_odds == -2.0
    assert read.metrics == {"train_runtime": 3.0, "eval_f1": 90.0}
    assert read.log_history == [{"step": 1, "loss": 2.0}]
    assert read.settings["args"] == {"seed": 1}
    assert read.missing == []


def test_an_answer_is_marked_at_its_recorded_or_its_only_position(make_run):
    run = make_run()
    turku, year, _ = read_run(run).results
    assert turku.predicted_span is None  # it occurs twice
    assert CONTEXT[slice(*year.predicted_span)] == "1901"
    second = CONTEXT.rindex("Turku")
    write(run / "report.json", {"spans": {"a": [second, second + 5], "b": [0, 3], "c": None}})
    turku, year, _ = read_run(run).results
    assert turku.predicted_span == (second, second + 5)
    assert CONTEXT[slice(*year.predicted_span)] == "1901"  # the recorded span does not match the answer


def test_the_page_of_a_recorded_run_is_reproduced(make_run):
    nbest = {key: [{"text": "Turku", "probability": 0.8}] for key in GOLDS}
    run = make_run(predictions={"a": "Turku", "b": "Zo\u00eb", "c": "1920"}, **{"eval_nbest_predictions.json": nbest})
    (run / "eval_results.json").write_text('{"eval_mine": 0.12345}')
    recorded = record(
        read_run(run).results,
        metrics={"eval_mine": 0.12345},
        headline="mine",
        settings={"args": {"seed": 7}, "data": {"train questions": 3}},
        sections={"The pipeline": "<p>Two stages</p>"},
        title="A reader",
    )
    page = record_run(run, recorded)
    before = page.read_text(encoding="utf-8")
    assert "Two stages" in before
    assert before.index("<dt>mine</dt><dd>0.1235") < before.index("<dt>F1</dt>")
    page.unlink()
    write_page(run)
    assert page.read_text(encoding="utf-8") == before


def test_a_hostile_record_cannot_add_markup(make_run):
    run = make_run()
    hostile = {"title": HOSTILE, "settings": {HOSTILE: {HOSTILE: HOSTILE}}, "sections": {HOSTILE: HOSTILE}}
    write(run / "report.json", hostile)
    page = Page(write_page(run).read_text(encoding="utf-8"))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    # Title and h1, the heading of the section and its link, and the settings; the content of the section is removed.
    assert "".join(page.text).count(HOSTILE) == 7


def test_a_part_of_the_data_may_have_been_answered(make_run):
    assert [result.id for result in read_run(make_run(predictions={"b": "1901"})).results] == ["b"]


def test_the_generated_corpus_is_reproduced(tmp_path):
    _, validation = generate(num_train=4, num_validation=6, seed=3)
    write(tmp_path / "eval_predictions.json", {example["id"]: "" for example in validation})
    write(tmp_path / "config.yaml", {"data": DATA})
    results = read_run(tmp_path).results
    assert [result.question for result in results] == [example["question"] for example in validation]


def test_answer_files_of_the_transformers_example_can_be_read(tmp_path, data):
    write(tmp_path / "hf" / "predictions.json", {"a": "Turku"})
    read = read_run(tmp_path / "hf", data=data)
    assert read.results[0].exact == 1.0
    assert read.missing == [
        "hf has no nbest_predictions.json, so the page shows no candidates, no calibration and no threshold curve."
    ]


@pytest.mark.parametrize(
    "answers",
    [
        {"a": "Turku", "b": "1902", "c": ""},
        {"a": {"text": "Turku"}, "b": {"prediction_text": "1902", "no_answer_probability": 0.5}, "c": None},
        {"a": [{"text": "Turku", "probability": 0.9}, {"text": "1920", "probability": 0.1}], "b": "1902", "c": ""},
    ],
    ids=["texts", "mappings", "n-best"],
)
def test_official_file_of_answers_is_read(answers, tmp_path, data, capsys):
    file = write(tmp_path / "answers.json", answers)
    write(tmp_path / "answers_na_prob.json", {"a": 0.1, "b": 0.2, "c": 0.9})
    record = read_run(file, data=data)
    assert [result.exact for result in record.results] == [1.0, 0.0, 1.0]
    assert [result.null_odds for result in record.results] == [0.1, 0.2, 0.9]
    main([str(file), "--data", str(data)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "answers-report.html")
    other = write(tmp_path / "other.json", {"a": "1920", "b": "1901", "c": ""})
    main([str(file), str(other), "--data", str(data)])
    assert (tmp_path / "comparison-with-answers.html").is_file()


@pytest.mark.parametrize("in_sources", [False, True])
def test_the_file_of_the_training_questions_is_not_read(in_sources, make_run, data, tmp_path):
    """It may be elsewhere, large, or gone: nobody is asked to allow what a page does not show."""
    run = make_run()
    files = {"train_file": str(tmp_path / "elsewhere" / "train.json"), "validation_file": str(data)}
    write(run / "config.yaml", {"data": {"sources": [files]} if in_sources else files})
    assert len(read_run(run, allow_path=[data]).results) == 3


def test_one_run(make_run, capsys):
    run = make_run()
    with pytest.raises(SystemExit, match=r"^1$"):
        main([str(run)])
    data = run.parent / "dev.json"
    assert f"names {data}, which would be read from outside of its folder; if" in (error := capsys.readouterr().err)
    assert f"allow it with `portico report --allow-path {data} {run}`. " in error
    for allowed in (data, run.parent):
        main([str(run), "--allow-path", str(allowed)])
    assert capsys.readouterr().out.splitlines() == 2 * [str(run / "report.html")]
    main([str(run), "--data", str(data)])
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    assert "3 questions, 1 of them without an answer: 3 correct, 0 incorrect." in page.text
    main([str(run), "--trust-config"])  # its own page is written again


def test_two_runs(make_run, tmp_path):
    first, second = make_run("first", {"a": "Turku", "b": "Zoë", "c": "1901"}), make_run("second")
    page = write_page(first, second)
    assert page == second / "comparison-with-first.html"
    assert "first and second" in Page(page.read_text(encoding="utf-8")).text
    assert write_page(first, second, output=tmp_path / "page.html") == tmp_path / "page.html"


def test_verdict_of_a_comparison_is_printed_before_the_path(make_run, capsys):
    first, second = make_run("first", {"a": "Turku", "b": "Zo\u00eb", "c": "1901"}), make_run("second")
    main([str(first), str(second), "--allow-path", str(first.parent)])
    verdict, path = capsys.readouterr().out.splitlines()
    assert verdict.startswith("3 questions: F1 rose by 66.7 to 100.0; 2 answers fixed, 0 broken. ")
    assert "significant" in verdict
    assert path == str(second / "comparison-with-first.html")


def test_three_runs(make_run, capsys):
    runs = [make_run("first", {"a": "Turku", "b": "Zoë", "c": "1901"}), make_run("second"), make_run("third")]
    main([*(str(run) for run in runs), "--allow-path", str(runs[0].parent)])
    assert capsys.readouterr().out.splitlines()[-1] == str(runs[2] / "comparison-of-3-runs.html")
    page = Page((runs[2] / "comparison-of-3-runs.html").read_text(encoding="utf-8"))
    assert "3 runs from first" in page.text


def refused(match, *arguments, **options):
    with pytest.raises(InputError, match=match) as caught:
        write_page(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_run(tmp_path, data):
    refused(
        "nowhere: no such folder or file; name the folder of a run, which contains its eval_predictions.json, or a",
        tmp_path / "nowhere",
    )
    refused("dev.json: the entry of question 'data' is .*, not a text", data, data=data)
    refused("it has no eval_predictions.json; name the folder of a run that has been evaluated", tmp_path)


def test_data_that_does_not_fit(make_run, tmp_path):
    other = write(tmp_path / "other.json", squad({"a": ["Turku"], "z": ["1901"]}))
    refused(
        r"2 of its 3 answers are to questions that are not in the data, such as 'b'; name the SQuAD file",
        make_run(),
        data=other,
    )


def test_data_that_cannot_be_found(make_run, data):
    run = make_run()
    data.unlink()
    refused("no such file.*config.yaml names this data; name another file with --data", run)
    (run / "config.yaml").unlink()
    refused("config.yaml is missing or does not name the data; name the file of the questions with --data", run)


@pytest.mark.parametrize("name", ["eval_nbest_predictions.json", "eval_null_odds.json"])
def test_files_of_another_evaluation(make_run, name):
    refused(
        rf"{name}: lacks 2 of the 3 answered questions, such as 'b', so it belongs to another evaluation",
        make_run(**{name: {"a": []}}),
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("eval_predictions.json", '{"a": "Tur', "eval_predictions.json: cannot be read .*restore the file, or remove"),
        (
            "eval_predictions.json",
            "[]",
            "contains a list, not a mapping; expected .* by question id",
        ),
        ("config.yaml", "a: [", "config.yaml: cannot be read"),
        ("config.yaml", "data: 5", "`data=5` is not a mapping"),
        ("eval_predictions.json", '{"a": ' + "[" * 100_000, "eval_predictions.json: cannot be read"),
        ("eval_predictions.json", '{"a": true}', "the entry of question 'a' is True, not a text; restore"),
        ("eval_null_odds.json", '{"a": NaN, "b": 0, "c": 0}', "the entry of question 'a' is nan, not a number"),
        (
            "eval_nbest_predictions.json",
            '{"a": [{}], "b": [], "c": []}',
            "question 'a' is .*, not a list of cand",
        ),
        ("trainer_state.json", '{"log_history": [5]}', "`log_history` is .5., not a list of mappings"),
    ],
)
def test_broken_files(make_run, name, text, message):
    run = make_run()
    (run / name).write_text(text)
    refused(message, run)


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ({"spans": [[0, 5]]}, "report.json: `spans` is a list, not a mapping; restore the file, or remove it"),
        ({"sections": "<p>a</p>"}, "report.json: `sections` is a str, not a mapping"),
        ({"settings": [1]}, "report.json: `settings` is a list, not a mapping"),
        ({"spans": {"a": 7}}, "report.json: the span of question 'a' is 7, not a pair of character offsets"),
        ({"spans": {"a": ["0", "5"]}}, "the span of question 'a' is .* not a pair"),
        ({"settings": {"args": 5}}, "the settings 'args' are 5, not a mapping"),
        ({"baselines": {"a": {"f1": "b"}}}, "the baseline 'a' is {'f1': 'b'}, not numbers by name"),
    ],
)
def test_a_record_of_another_form(make_run, recorded, message):
    run = make_run()
    write(run / "report.json", recorded)
    refused(message, run)


ALL_FILES = {
    "eval_predictions.json": {"a": "Turku", "b": "1901", "c": ""},
    "eval_nbest_predictions.json": {
        key: [{"text": "Turku", "probability": 0.8, "start_logit": 1.0, "end_logit": 2.0}] for key in GOLDS
    },
    "eval_null_odds.json": dict.fromkeys(GOLDS, -2.0),
    "eval_results.json": {"eval_f1": 90.0, "eval_runtime": 2.0},
    "train_results.json": {"train_runtime": 3.0},
    "trainer_state.json": {"log_history": [{"step": 1, "loss": 2.0}, {"step": 1, "eval_f1": 90.0}]},
    "report.json": {
        **{"title": "t", "settings": {"args": {"seed": 1}}, "sections": {"More": "<b>x</b>"}},
        **{"spans": {"a": [16, 21], "c": None}, "baselines": {"answering nothing": {"f1": 33.3}}},
    },
}


@pytest.mark.parametrize("num_files", [30, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*ALL_FILES, "config.yaml"])
def test_damaged_file_of_a_run_is_shown_or_refused(make_run, name, num_files):
    run = make_run(**ALL_FILES)
    tree = ALL_FILES[name] if name in ALL_FILES else yaml.safe_load((run / name).read_text())
    num_written = 0
    for seed in range(num_files):
        rng = Random(f"{name} {seed}")
        is_tree = rng.random() < 0.7
        content = json.dumps(damaged_tree(rng, tree)).encode() if is_tree else damaged_file(rng, json.dumps(tree))
        (run / name).write_bytes(content)
        with suppress(InputError):
            write_page(run)
            num_written += 1
    assert 0 < num_written < num_files


@pytest.mark.parametrize("name", [*ALL_FILES, "config.yaml", "eval_predictions.json"])
def test_a_comparison_that_is_refused_names_the_damaged_run(make_run, name):
    first, second, third = (make_run(run, **ALL_FILES) for run in ("first", "damaged", "third"))
    tree = yaml.safe_load((second / name).read_text())
    num_refused = 0
    for seed in range(8):
        (second / name).write_bytes(damaged_file(Random(f"{name} {seed}"), json.dumps(tree)))
        error = error_of(first, second, third)
        assert error is None or str(second) in error
        num_refused += error is not None
    assert num_refused


def error_of(*runs):
    """Return the message with which a comparison is refused, if it is."""
    try:
        write_page(*runs)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize("opening", ["[", '{"a": '])
@pytest.mark.parametrize("depth", [100, 300, 500, 700, 900, 5000, 100_000])
def test_a_comparison_with_a_run_of_great_depth_names_it(make_run, depth, opening):
    first, second = make_run("first"), make_run("deep")
    end = {"[": "]", '{"a": ': "}"}[opening]
    deep = f"{opening * depth}1{end * depth}"
    (second / "report.json").write_text(f'{{"settings": {{"args": {{"a": {deep}}}}}}}')
    error = error_of(first, second)
    assert error is None or str(second) in error
    assert depth < 100_000 or "RecursionError" in error or "cannot be read" in error


def test_a_class_that_a_configuration_names_is_not_called(make_run):
    run = make_run()
    for target in ("builtins.exec", "os.system", ["os.system"]):
        write(run / "config.yaml", {"data": {"_target_": target, "command": "true"}})
        refused(r"config.yaml names .*os.system|exec.*, which would be imported and called; .*--trust-config", run)
    write(run / "config.yaml", {"data": {"_target_": "no.Data"}})
    refused("`data._target_=no.Data` cannot be imported", run, trust_config=True)
    write(run / "config.yaml", {"data": {"_target_": "portico.mrc.config.MRCData", "color": 5}})
    refused("`data.color` is not a setting", run)


def test_a_configuration_that_multiplies_itself_is_refused(make_run):
    run = make_run()
    lines = ["a0: &a0 [1]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    (run / "config.yaml").write_text("\n".join(lines))
    refused("config.yaml: cannot be read .it holds an alias", run)


def test_a_foreign_file_is_never_overwritten_and_the_output_is_checked(make_run, tmp_path):
    run = make_run()
    foreign = run / "report.html"
    foreign.write_text("<p>mine</p>")
    refused("the file exists and was not written by this command; name another with --output", run)
    assert foreign.read_text() == "<p>mine</p>"
    foreign.write_text("")  # as a killed process has left it
    write_page(run)
    assert foreign.stat().st_size
    foreign.unlink()
    refused("is a folder; name a file with --output, for example", run, output=tmp_path)
    refused("cannot be written .No such file or directory.; name another", run, output=tmp_path / "no" / "a.html")
    for number in (0, -1, float("nan")):
        refused(rf"`--max-megabytes {number:g}` is not positive; give a number above 0", run, max_megabytes=number)


def test_bad_input_ends_with_one_paragraph(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path)])
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith("error: ")
