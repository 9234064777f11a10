"""Every file of `conf` is composed, and says nothing that does not exist."""

import functools
import importlib.util
from pathlib import Path

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf
from transformers import Seq2SeqTrainingArguments

from fake_runner import OVERRIDES, valid_keys
from portico.cli import compose
from portico.cli.keys import TOP_LEVEL_NAMES
from portico.cli.location import config_dir, experiment_names

CONF = config_dir()
GROUP_FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml") if path.name != "config.yaml")
REAL_RUNNER = importlib.util.find_spec("portico.mrc.experiment.run") is not None


def override(file: Path) -> str:
    sign = "+" if file.parts[0] == "experiment" else ""
    return f"{sign}{file.parent.as_posix()}={file.stem}"


def experiment_of(file: Path) -> str:
    """The experiment that a file belongs to: the one that chooses it, else that of MRC, which takes any."""
    chosen = f"override /{file.parent.as_posix()}: {file.stem}\n"
    names = [file.stem] if file.parts[0] == "experiment" else experiment_names()
    return next(
        (name for name in names if name == file.stem or chosen in (CONF / "experiment" / f"{name}.yaml").read_text()),
        "mrc",
    )


@functools.cache
def compose_file(file: Path):
    """Compose a file, once for all tests that look at it.

    The groups of MRC are composed for a runner that costs nothing; other runners say what they take.
    """
    experiment = experiment_of(file)
    overrides = OVERRIDES if experiment == "mrc" else ()
    if file.parts[0] == "experiment":
        return compose(overrides, experiment=experiment)
    return compose([override(file), *overrides], experiment=experiment)


def test_checkout_is_what_is_tested():
    assert Path(__file__).parents[2] / "conf" == CONF
    assert len(GROUP_FILES) >= 20


@pytest.mark.parametrize("file", GROUP_FILES, ids=str)
def test_composes_and_every_key_exists(file):
    settings = compose_file(file)
    assert set(settings) <= set(TOP_LEVEL_NAMES)
    assert set(settings["args"]) <= set(valid_keys()["args"])


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


@pytest.mark.parametrize("file", [file for file in GROUP_FILES if file.parts[0] in ("args", "debug")], ids=str)
def test_args_fit_together(file, tmp_path):
    """TrainingArguments refuses combinations, such as keeping the best model without evaluating."""
    args = Seq2SeqTrainingArguments(output_dir=str(tmp_path), **compose_file(file)["args"])
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
