"""Every file of `conf` is composed, and says nothing that does not exist."""

import functools
from pathlib import Path

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from portico.cli import compose
from portico.cli.composition import config_dir, experiment_names
from portico.cli.errors import TOP_LEVEL_NAMES
from portico.experiments.experiment import TARGET, build_experiment, experiment_class
from portico.experiments.settings import schema_of
from portico.trust.names import import_target

CONF = config_dir()
GROUP_FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml") if path.name != "config.yaml")
# Each file of these groups names its class; the trainer chooses those of `strategy` and `args`.
OF_THE_COMMAND_LINE = ("paths", "objective", "name", "tags", "mode", "overwrite", "print_config")
NAME_THEIR_CLASS = ("trainer", "task", "data", "model", "preprocess", "postprocess", "metric")


def override(file: Path) -> str:
    sign = "+" if file.parts[0] == "experiment" else ""
    # Debugging files of one experiment are in a folder of the group.
    group, name = ("debug", file.relative_to("debug")) if file.parts[0] == "debug" else (file.parent, Path(file.name))
    return f"{sign}{Path(group).as_posix()}={name.with_suffix('').as_posix()}"


def experiment_of(file: Path) -> str:
    """The experiment that a file belongs to: the one that chooses it, else that of MRC, which takes any."""
    chosen = f"override /{file.parent.as_posix()}: {file.stem}\n"
    names = [file.stem] if file.parts[0] == "experiment" else experiment_names()
    if file.parts[0] == "debug" and len(file.parts) == 3:
        return file.parts[1]
    return next(
        (name for name in names if name == file.stem or chosen in (CONF / "experiment" / f"{name}.yaml").read_text()),
        "mrc",
    )


@functools.cache
def compose_file(file: Path):
    """Compose a file, once for all tests that look at it.

    A trainer is composed alone: it chooses the class of the experiment itself.
    """
    experiment = experiment_of(file)
    if file.parts[0] == "experiment":
        return compose(experiment=experiment)
    # Samplers and pruners are groups of one sweeper.
    around = ["hydra/sweeper=portico_optuna"] if file.parent.parent.as_posix() == "hydra/sweeper" else []
    return compose([*around, override(file)], experiment=None if file.parts[0] == "trainer" else experiment)


def test_checkout_is_what_is_tested():
    assert Path(__file__).parents[2] / "conf" == CONF
    assert len(GROUP_FILES) >= 20


@pytest.mark.parametrize("file", GROUP_FILES, ids=str)
def test_composes_and_every_key_exists(file):
    settings = compose_file(file)
    assert set(settings) <= {TARGET, *TOP_LEVEL_NAMES}


@pytest.mark.parametrize("file", [file for file in GROUP_FILES if file.parts[0] in NAME_THEIR_CLASS], ids=str)
def test_every_group_names_a_class_that_can_be_imported(file):
    group = file.parts[0]
    assert callable(import_target(f"{group}.{TARGET}", compose_file(file)[group][TARGET]))


def written_settings(file: Path):
    """What a file sets in the composed configuration: `section, key, value`, references left out."""
    content = OmegaConf.to_container(OmegaConf.load(CONF / file))
    if "@package _global_" not in (CONF / file).read_text():
        content = {file.parts[0]: content}
    for section, values in content.items():
        if isinstance(values, dict) and section != "hydra":
            stated = {key: value for key, value in values.items() if key != "defaults"}
            yield from ((section, key, value) for key, value in stated.items() if "${" not in str(value))


@pytest.mark.parametrize("file", [file for file in GROUP_FILES if file.parts[0] not in ("hydra", "trainer")], ids=str)
def test_takes_effect(file):
    """A file that changed nothing would lie where nothing reads it."""
    settings = compose_file(file)
    for section, key, value in written_settings(file):
        assert settings[section][key] == value


@pytest.mark.parametrize("file", GROUP_FILES, ids=str)
def test_every_file_says_what_it_is_for(file):
    lines = (CONF / file).read_text().splitlines()
    assert any("#" in line and "@package" not in line for line in lines)


# Those of gradient_descent are arguments of AllenNLP's trainer.
WITH_ARGS = [
    file for file in GROUP_FILES if file.parts[0] in ("args", "debug") and experiment_of(file) != "gradient_descent"
]


@pytest.mark.parametrize("file", WITH_ARGS, ids=str)
def test_args_fit_together(file, tmp_path):
    """TrainingArguments refuse combinations, such as keeping the best model without evaluating."""
    settings = {**compose_file(file), "strategy": {}, "callbacks": [], "logger": []}
    settings = {name: value for name, value in settings.items() if name not in OF_THE_COMMAND_LINE}
    assert build_experiment(settings, str(tmp_path)).build_arguments().learning_rate > 0


@pytest.mark.parametrize("group", ["callbacks", "logger"])
def test_targets_can_be_imported(group):
    for file in GROUP_FILES:
        if file.parts[0] == group:
            for entry in OmegaConf.load(CONF / file).values():
                assert callable(get_object(entry["_target_"]))


def test_debug_cuts_down_what_the_experiment_says():
    settings = compose(["debug=default"])
    assert settings["args"]["max_steps"] == 2
    assert settings["data"]["max_train_samples"] == 64


@pytest.mark.parametrize("experiment", experiment_names())
def test_experiment_composes_and_is_named_after_its_file(experiment):
    settings = compose(experiment=experiment)
    assert settings["name"] == experiment
    assert {"train", "evaluate"} <= set(experiment_class(settings).MODES)


def written_keys(file: Path):
    content = OmegaConf.to_container(OmegaConf.load(CONF / file))
    return {} if "@package _global_" in (CONF / file).read_text() else content


@pytest.mark.parametrize("file", [file for file in GROUP_FILES if file.parts[0] in NAME_THEIR_CLASS[1:]], ids=str)
def test_a_file_states_only_what_differs_from_the_default(file):
    """What repeats a default would hide that it changes."""
    content = written_keys(file)
    if TARGET not in content:
        return
    known = schema_of(import_target(TARGET, content[TARGET])).known
    repeated = {key for key, value in content.items() if key in known and known[key].default == value}
    assert not repeated
