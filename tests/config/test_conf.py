"""Every file of `conf` is composed, and says nothing that does not exist."""

import importlib.util
from pathlib import Path

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf
from transformers import TrainingArguments

from fake_runner import OVERRIDES, valid_keys
from portico.cli import compose
from portico.cli.keys import TOP_LEVEL_NAMES
from portico.cli.location import config_dir, experiment_names

CONF = config_dir()
GROUP_FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml") if path.name != "config.yaml")
REAL_RUNNER = importlib.util.find_spec("portico.mrc.run") is not None


def override(file: Path) -> str:
    sign = "+" if file.parts[0] == "experiment" else ""
    return f"{sign}{file.parent.as_posix()}={file.stem}"


def compose_file(file: Path, *overrides: str):
    if file.parts[0] == "experiment":
        return compose(overrides, experiment=file.stem)
    return compose([override(file), *overrides])


def test_checkout_is_what_is_tested():
    assert Path(__file__).parents[2] / "conf" == CONF
    assert len(GROUP_FILES) >= 20


@pytest.mark.parametrize("file", GROUP_FILES, ids=str)
def test_composes_and_every_key_exists(file):
    settings = compose_file(file, *OVERRIDES)
    assert set(settings) <= set(TOP_LEVEL_NAMES)
    assert set(settings["args"]) <= set(valid_keys()["args"])


def written_settings(file: Path):
    """What a file sets in the composed configuration: `section, key, value`, references left out."""
    content = OmegaConf.to_container(OmegaConf.load(CONF / file))
    if "@package _global_" not in (CONF / file).read_text():
        content = {file.parts[0]: content}
    for section, values in content.items():
        if isinstance(values, dict) and section != "hydra":
            yield from ((section, key, value) for key, value in values.items() if "${" not in str(value))


@pytest.mark.parametrize("file", [file for file in GROUP_FILES if file.parts[0] not in ("hydra", "trainer")], ids=str)
def test_takes_effect(file):
    """A file that changed nothing would lie where nothing reads it."""
    settings = compose_file(file, *OVERRIDES)
    for section, key, value in written_settings(file):
        assert settings[section][key] == value


@pytest.mark.parametrize("file", GROUP_FILES, ids=str)
def test_every_file_says_what_it_is_for(file):
    lines = (CONF / file).read_text().splitlines()
    assert any("#" in line and "@package" not in line for line in lines)


@pytest.mark.parametrize("file", [file for file in GROUP_FILES if file.parts[0] in ("args", "debug")], ids=str)
def test_args_fit_together(file, tmp_path):
    """TrainingArguments refuses combinations, such as keeping the best model without evaluating."""
    args = TrainingArguments(output_dir=str(tmp_path), **compose_file(file, *OVERRIDES)["args"])
    assert args.learning_rate > 0


@pytest.mark.parametrize("group", ["callbacks", "logger"])
def test_targets_can_be_imported(group):
    for file in GROUP_FILES:
        if file.parts[0] == group:
            for entry in OmegaConf.load(CONF / file).values():
                assert callable(get_object(entry["_target_"]))


def test_debug_cuts_down_what_the_experiment_says():
    settings = compose(["debug=limit", *OVERRIDES])
    assert settings["args"]["num_train_epochs"] == 1
    assert settings["data"]["max_train_samples"] == 512


@pytest.mark.skipif(not REAL_RUNNER, reason="the runner of this experiment is not there")
@pytest.mark.parametrize("experiment", experiment_names())
def test_experiment_names_a_runner_that_takes_it(experiment):
    assert compose(experiment=experiment)["name"] == experiment
