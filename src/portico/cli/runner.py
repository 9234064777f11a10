"""The border: plain values go to the one function that the configuration names, a dict of metrics comes back."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_type_hints

from hydra.utils import get_method, instantiate

from portico.cli.explain import explained
from portico.cli.keys import check_groups, check_keys, runner_groups
from portico.cli.location import experiment_names
from portico.cli.objective import check_mode
from portico.cli.run_folder import check_folder_settings
from portico.errors import InputError

if TYPE_CHECKING:
    from portico.configured_run import RunSettings

# Groups of `name: {_target_: ...}` entries; the runner gets the objects.
OBJECT_GROUPS = ("callbacks", "logger")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse a configuration that names no runner, or holds something that nothing reads.

    Raises:
        InputError: If `trainer.run` is missing, a group or a key is unknown, or a setting of the
            command line itself cannot be used.
    """
    trainer = settings["trainer"]
    if not trainer.get("run"):
        names = experiment_names()
        raise InputError(
            f"No experiment was chosen; there are: {', '.join(names)}. Start one with +experiment=<name>, as in: "
            f"python train.py +experiment={names[0]}. All groups and settings are listed by --help."
        )
    with explained():
        groups = [field.name for field in fields(_settings_class(get_method(trainer["run"])))]
        valid_keys = get_method(trainer["valid_keys"])()
    check_groups(settings, groups)
    check_keys(settings, valid_keys)
    check_mode(settings["objective"])
    check_folder_settings(settings)


def call_runner(settings: Mapping[str, Any], output_dir: str) -> Mapping[str, float]:
    """Call the function named by `trainer.run` with the groups as its settings, and return its metrics.

    Raises:
        InputError: If a callback or logger cannot be built, or the runner refuses what it got.
    """
    run: Callable[..., Mapping[str, float]] = get_method(settings["trainer"]["run"])
    groups = runner_groups(settings)
    objects: dict[str, Any] = {name: _build(groups.pop(name)) for name in OBJECT_GROUPS}
    if "trainer" in groups:
        with explained():
            # Parts with a `_target_` are built, those with `_partial_` when the trainer calls them.
            objects["trainer"] = instantiate(groups.pop("trainer"), _convert_="all")
    return run(_settings_class(run)(**groups, **objects, output_dir=output_dir))


def _settings_class(run: Callable[..., Any]) -> "type[RunSettings]":
    """Return the class of the one argument of a runner: its fields are the groups that the runner takes."""
    settings_class: type[RunSettings] = get_type_hints(run)["settings"]
    return settings_class


def _build(entries: Mapping[str, Any]) -> list[Any]:
    """Build the objects of a group; an entry set to null is left out."""
    with explained():
        return [instantiate(entry, _convert_="all") for entry in entries.values() if entry is not None]
