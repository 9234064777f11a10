"""Settings that are known from a file are those of the classes, and need no import."""

import json
from pathlib import Path

import pytest

import portico.cli.experiment
from fresh_process import assert_runs_anew
from portico.cli import known_settings
from portico.cli.composition import compose
from portico.cli.known_settings import VARIABLE, schema_for
from portico.errors import InputError

TYPOS = (
    {"args": {"lerning_rate": 1}},
    {"args": {"lr": 1}},
    {"args": {"learning_rate": "fast"}},
    {"args": {"num_train_epochs": -1}},
    {"argss": {"x": 1}},
    {"preprocess": {"max_lenth": 2}},
    {"trainer": {"learning_rate": 1}},
)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(cache, monkeypatch):
    """Return the folder of the user's file, where the file that comes with portico counts no more."""
    monkeypatch.setattr(known_settings, "OF_PORTICO", cache / "none.json")
    return cache


@pytest.fixture
def unread(monkeypatch):
    """Return a function after which classes cannot be read any more."""

    def refuse(settings):
        raise AssertionError("the classes were read")

    return lambda: monkeypatch.setattr(portico.cli.experiment, "schema_of_experiment", refuse)


def refusals(schema, settings):
    for typo in TYPOS:
        with pytest.raises(InputError) as refused:
            schema.check({**settings, **{name: {**settings.get(name, {}), **keys} for name, keys in typo.items()}})
        yield str(refused.value)


@pytest.mark.parametrize("experiment", ["mrc", "gradient_descent", "mrc_ipu", "mrc_ort", "image_classification"])
def test_stored_settings_are_those_of_the_classes(experiment, folder, unread):
    settings = compose(experiment=experiment)
    for stored in folder.iterdir():
        stored.unlink()
    fresh = schema_for(settings)
    unread()
    stored = schema_for(settings)
    assert stored is not fresh
    assert (stored.modes, stored.fields) == (list(fresh.modes), fresh.fields)
    assert stored.help(settings) == fresh.help(settings)
    assert stored.all_settings(settings) == fresh.all_settings(settings)
    further = dict.fromkeys(set(settings) - set(fresh.groups), ())
    stored.check(settings, further)
    assert list(refusals(stored, settings)) == list(refusals(fresh, settings))


def test_a_refused_command_imports_nothing_heavy_the_first_time(cache):
    commands = (
        ("+experiment=mrc args.lerning_rate=1", "nearest valid names are: args.learning_rate"),
        ("+experiment=mrc lr=1", "use args.learning_rate"),
        ("+experiment=mrc mode=trainn", "train, evaluate, predict"),
        ("+experiment=mrcc", "names no file"),
        ("+experiment=mrc modle=small_bert", "nearest valid names are: mode, model"),
    )
    run = """
import contextlib, io, sys
from portico.cli import main
sys.argv = ["train.py", *{command!r}.split(), "hydra.run.dir={cache}/run"]
said = io.StringIO()
with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
    main()
assert {message!r} in said.getvalue(), said.getvalue()
assert not {{"torch", "transformers", "lightning", "numpy"}} & sys.modules.keys()
"""
    codes = [run.format(command=command, message=message, cache=cache) for command, message in commands]
    assert_runs_anew(*codes, after=("hydra", "rich", "jinja2"))


@pytest.mark.parametrize("experiment", ["mrc", "gradient_descent", "mrc_ort"])
def test_settings_that_come_with_portico_are_those_of_the_classes(experiment, cache, unread):
    settings = compose(experiment=experiment)
    fresh = portico.cli.experiment.schema_of_experiment(settings)
    unread()
    stored = schema_for(settings)
    assert list(cache.iterdir()) == []
    assert stored.help(settings) == fresh.help(settings)
    assert list(refusals(stored, settings)) == list(refusals(fresh, settings))


@pytest.mark.parametrize("source", ["settings.py", "no_such_file.py", "transformers", "no-such-package"])
def test_settings_that_come_with_portico_do_not_count_for_other_sources(source, folder, monkeypatch, unread):
    settings = compose()
    content = json.loads(Path(known_settings.__file__).with_suffix(".json").read_text())
    known_settings.OF_PORTICO.write_text(
        json.dumps({**content, "read_from": {**content["read_from"], source: "other"}})
    )
    unread()
    monkeypatch.setenv(VARIABLE, "/proc/none/there")
    with pytest.raises(AssertionError, match="the classes were read"):
        schema_for(settings)


def spoil_source(stored):
    source = next(iter(stored["files"]))
    return {**stored, "files": {**stored["files"], source: [0, 0]}}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda stored: json.dumps(spoil_source(stored)),
        lambda stored: json.dumps({**stored, "files": {**stored["files"], "/removed/source.py": [1, 2]}}),
        lambda stored: json.dumps({"files": {}}),
        lambda stored: json.dumps(
            {**stored, "schema": {**stored["schema"], "groups": {"args": ["A", False, {"x": 1}]}}}
        ),
        lambda stored: json.dumps(stored)[:-20],
        lambda stored: "[]",
    ],
    ids=["changed source", "removed source", "no settings", "other form", "cut off", "no mapping"],
)
def test_a_file_that_may_be_wrong_is_written_again(spoil, folder):
    settings = compose()
    before = schema_for(settings).names()
    (file,) = folder.iterdir()
    right = json.loads(file.read_text())
    del right["schema"]["groups"]["args"][2]["learning_rate"]
    file.write_text(spoil(right))
    assert schema_for(settings).names() == before
    assert "learning_rate" in json.loads(file.read_text())["schema"]["groups"]["args"][2]


class Own(portico.TrainingArguments):
    pass


def test_classes_of_the_user_are_read_each_time(folder):
    compose([f"args._target_={__name__}.Own"])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("place", ["off", "/proc/none/there"])
def test_without_a_folder_the_classes_are_read(place, monkeypatch):
    monkeypatch.setenv(VARIABLE, place)
    monkeypatch.setattr(known_settings, "OF_PORTICO", Path("none.json"))
    assert schema_for(compose()).modes == ("train", "evaluate", "predict")
