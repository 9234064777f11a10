"""Which settings exist, and which existing one an unknown one may have meant."""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from portico.errors import InputError

# Sections of the configuration in which any key can be set; `check_keys` tells which of them mean something.
OPEN_SECTIONS = (
    "trainer",
    "args",
    "model",
    "data",
    "preprocess",
    "postprocess",
    "metric",
    "strategy",
    "callbacks",
    "logger",
    "paths",
    "objective",
)
TOP_LEVEL_NAMES = (*OPEN_SECTIONS, "name", "overwrite", "allennlp_config", "experiment", "sweep", "debug", "hydra")
# What the command line itself reads; all other sections belong to the runner.
CLI_KEYS: Mapping[str, Collection[str]] = {
    "trainer": ("run", "valid_keys"),
    "paths": ("output_dir", "sweep_dir"),
    "objective": ("metric", "mode"),
}
CLI_NAMES = (*CLI_KEYS, "name", "overwrite")


def suggestion(unknown: str, known: Collection[str]) -> str:
    """Return the end of a sentence: up to three known names, those with the same last part first."""
    leaf = unknown.rpartition(".")[2]
    elsewhere = [name for name in known if "." in name and name.rpartition(".")[2] == leaf]
    nearest = list(dict.fromkeys([*elsewhere, *get_close_matches(unknown, known, n=3)]))[:3]
    return f"; the nearest valid names are: {', '.join(nearest)}." if nearest else "."


def runner_groups(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the configuration that is handed to the runner; of `trainer` what is not read here."""
    groups = {name: value for name, value in settings.items() if name not in CLI_NAMES}
    trainer = {key: value for key, value in settings.get("trainer", {}).items() if key not in CLI_KEYS["trainer"]}
    return {**groups, "trainer": trainer} if trainer else groups


def check_groups(settings: Mapping[str, Any], groups: Collection[str]) -> None:
    """Refuse top-level names that are neither ours nor groups of the runner.

    Raises:
        InputError: Naming each of them and the nearest valid names.
    """
    _refuse([name for name in runner_groups(settings) if name not in groups], TOP_LEVEL_NAMES)


def check_keys(settings: Mapping[str, Any], valid_keys: Mapping[str, Collection[str]]) -> None:
    """Refuse keys of a group that nothing reads.

    Args:
        settings: The composed configuration, as plain containers.
        valid_keys: The keys that the runner takes, for each group in which they are fixed.

    Raises:
        InputError: Naming each of them and the nearest valid names.
    """
    allowed = {**CLI_KEYS, **valid_keys}
    known = _dotted(allowed)
    given = _dotted({group: settings.get(group) or () for group in allowed})
    _refuse([name for name in given if name not in known], known)


def _refuse(unknown: Iterable[str], known: Collection[str]) -> None:
    message = " ".join(f"'{name}' is not a setting{suggestion(name, known)}" for name in unknown)
    if message:
        raise InputError(message)


def _dotted(groups: Mapping[str, Iterable[str]]) -> list[str]:
    return [f"{group}.{key}" for group, keys in groups.items() for key in keys]
