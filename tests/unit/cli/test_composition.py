import logging

import pytest
from hydra.core.global_hydra import GlobalHydra

from fake_runner import OVERRIDES
from portico.cli import compose
from portico.errors import InputError


def is_plain(value):
    if isinstance(value, dict):
        return type(value) is dict and all(is_plain(item) for item in value.values())
    if isinstance(value, list):
        return type(value) is list and all(is_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def test_twice_in_a_process_gives_equal_plain_dicts():
    first, second = (compose([*OVERRIDES, "args.seed=3", "paths.output_dir=x"]) for _ in range(2))
    first["paths"].pop("sweep_dir"), second["paths"].pop("sweep_dir")
    assert first == second
    assert first["args"]["seed"] == 3
    assert is_plain(first)


def test_has_no_side_effects(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handlers = logging.getLogger().handlers[:]
    compose(OVERRIDES)
    assert not list(tmp_path.iterdir())
    assert logging.getLogger().handlers == handlers
    assert not GlobalHydra.instance().is_initialized()


def test_without_an_experiment_the_groups_are_chosen_by_hand():
    settings = compose(["trainer=mrc", "args=mrc", "data=embedded", "metric=squad", *OVERRIDES], experiment=None)
    assert settings["name"] == "custom"
    assert settings["model"] == {}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("args.learning_rat=1", r"'args.learning_rat' is not a setting; .* args.learning_rate"),
        ("+modle.size=1", r"'modle' is not a setting; the nearest valid names are: mode, model\."),
        ("arg.seed=1", r"'arg.seed' is not a setting; the nearest valid names are: args\. All: trainer, args, "),
        ("objective.metrc=1", r"'objective.metrc' is not a setting; .* objective.metric"),
        ("name.x=1", r"'name.x' is not a setting; those of 'name' are shown by --cfg all --package name"),
        ("hydra.verbse=1", r"'hydra.verbse' is not a setting; those of 'hydra' are shown by --cfg all"),
        ("args.x=[1", r"Cannot read 'args.x=\[1' \(.*\)\. Write key=value, and quote"),
        ("args.seed=1,2", r"Ambiguous value for argument 'args.seed=1,2'.* add --multirun"),
        ("args=mcr", r"'args=mcr' names no file of the group 'args'; .* mrc\. Choose one of: mrc"),
        ("args.seed=???", r"'args.seed' has no value and no default; add it to the command: args.seed=<value>\."),
        ("args.seed=${sed}", r"'args.seed' cannot be resolved: Interpolation key 'sed' not found\."),
        ("~args.seed", r"Could not delete from config\. 'args.seed' does not exist"),
    ],
)
def test_what_cannot_be_composed_is_explained_in_one_paragraph(override, message):
    with pytest.raises(InputError, match=message) as caught:
        compose([*OVERRIDES, override])
    assert "\n" not in str(caught.value)
