"""From the configuration files and a list of overrides to one plain dict, and on to an experiment."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from portico.cli.errors import EVERYWHERE, OPEN_GROUPS, OPTIONS_ELSEWHERE, TOP_LEVEL_NAMES, explained
from portico.cli.folders import CONFIG_FILE, check_folder_settings
from portico.cli.jobs import read_goals
from portico.errors import InputError, MissingPackageError
from portico.experiments.settings import ExperimentSchema, config_dir
from portico.trust.disk import read_text
from portico.trust.names import TARGET, built

if TYPE_CHECKING:
    from portico.experiments.experiment import Experiment

CONFIG_NAME = "config"
HYDRA_VERSION_BASE = "1.3"
# Groups of `name: {_target_: ...}` entries; the experiment is given the objects.
_OBJECT_GROUPS = ("callbacks", "logger")
_PACKAGES_OF_LOGGERS = {"CometLogger": "comet_ml", "MLFlowLogger": "mlflow", "WandbLogger": "wandb"}
# With a plus sign, as people write a group that is not in use by default.
_OPTIONAL_GROUP = re.compile(r"^\+(?=(debug|launcher|speed|sweep)=)")
# Groups that are switched off: those whose default is null, and those that have a file for it.
_NOT_CHOSEN = re.compile(r"^(debug|launcher|speed|sweep)=null$")
# A quoted string, or what stands between separators.
_PART_OF_VALUE = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,()\[\]'"]+""")
_ONLY_IN_QUOTES = re.compile(r"[^\x00-\x7f]|[;#!&<>^`~]")
_CHOSEN_NONE = re.compile(r"^(callbacks|logger)=null$")
# What an evaluation takes from the run whose model it loads.
_GROUPS_OF_RUNS = ("preprocess", "postprocess", "metric")
# What the command line itself reads, by group; in a group without keys here any key can be set.
_OWN_KEYS: Mapping[str, Sequence[str]] = {
    "paths": ("output_dir", "sweep_dir"),
    "objective": ("metric", "mode"),
    **dict.fromkeys(_OBJECT_GROUPS, ()),
    **dict.fromkeys(("name", "tags", "mode", "overwrite", "print_config"), ()),
}


def compose(overrides: Sequence[str] | None = None, experiment: str | None = "mrc") -> dict[str, Any]:
    """Compose and check a configuration without running it: no folder is made, no logging is set up.

    Args:
        overrides: What would follow ``train.py`` on the command line, such as ``["args.learning_rate=1e-4"]``.
        experiment: The file of ``conf/experiment`` to start from; None when the overrides choose the groups.

    Returns:
        One plain dict for each group (``args``, ``model``, ``data``, ...), with the defaults of the groups that the
        experiment builds; ``args`` holds keywords of ``TrainingArguments``.

    Raises:
        InputError: If an override cannot be read, or sets a key that does not exist.
    """
    register_resolvers()
    chosen = list(overrides or [])
    if experiment is not None and not any(re.match(r"\+?experiment=", override) for override in chosen):
        chosen = [f"+experiment={experiment}", *chosen]
    words = translate_arguments(chosen)
    return check_settings(_adopt_run_settings(_compose_plain(words), words))


def _compose_plain(overrides: Sequence[str]) -> dict[str, Any]:
    names = partial(find_known_names, overrides)
    with explained(names), hydra.initialize_config_dir(str(config_dir()), version_base=HYDRA_VERSION_BASE):
        # Resolved while Hydra is initialised: its resolvers, such as `now`, exist only then.
        return to_plain(hydra.compose(CONFIG_NAME, list(overrides)))


def translate_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the user's arguments as Hydra takes them.

    An experiment needs a plus sign; groups of the defaults list take none. Hydra does not take null for a group, so
    ``debug=null`` becomes ``~debug``, and ``logger=null`` becomes ``logger=none``. The files of ``debug`` for one
    experiment are in a folder named after it.
    Letters beyond ASCII are quoted.
    """
    found = [_OPTIONAL_GROUP.sub("", _quote_letters(override)) for override in arguments]
    found = [_CHOSEN_NONE.sub(r"\1=none", _NOT_CHOSEN.sub(r"~\1", override)) for override in found]
    found = [f"+{override}" if override.startswith("experiment=") else override for override in found]
    name = next((override.partition("=")[2] for override in found if override.startswith("+experiment=")), "")
    own = {path.stem for path in (config_dir() / "debug" / name).glob("*.yaml")} if name.isidentifier() else set()
    return [
        f"debug={name}/{override[6:]}" if override.startswith("debug=") and override[6:] in own else override
        for override in found
    ]


def _quote_letters(argument: str) -> str:
    """Quote the parts of a value that have letters beyond ASCII, which Hydra's grammar reads only in quotes.

    Hydra drops the quotes inside of ``choice(a,b)``, so that the job could not read the value: ``a,b`` means the same.
    """
    key, equals, value = argument.partition("=")
    if key.startswith("-") or not equals or "{" in value:  # an option, or keys and interpolations
        return argument
    quoted = value if value.isascii() else _PART_OF_VALUE.sub(_quote_part, value)
    chosen = re.fullmatch(r"choice\((.*)\)", quoted, re.DOTALL)
    return f"{key}={chosen[1] if chosen and _ONLY_IN_QUOTES.search(quoted) else quoted}"


def _quote_part(found: re.Match[str]) -> str:
    text = found[0]
    if text.isascii() or text[0] in "'\"":
        return text
    return "'{}'".format(re.sub(r"\\(.)", r"\1", text.strip()))


def find_known_names(overrides: Sequence[str]) -> Collection[str]:
    """Return all keys of the experiment that overrides choose, by default ``mrc``.

    The other overrides are left out: they may be the ones that cannot be composed.
    """
    choosing = [word for word in translate_arguments(overrides) if re.match(r"\+experiment=|trainer=", word)]
    if choosing == list(overrides):  # its own files cannot be composed
        return TOP_LEVEL_NAMES
    with suppress(InputError):
        settings = _compose_plain(choosing or ["+experiment=mrc"])
        return [*_load_schema(settings).names(_OWN_KEYS), *EVERYWHERE]
    return TOP_LEVEL_NAMES


def _load_schema(settings: Mapping[str, Any]) -> ExperimentSchema:
    # Experiments import torch, which takes seconds: a command that cannot be composed is refused without it.
    from portico.experiments.experiment import schema_of_experiment

    return schema_of_experiment(settings)


def experiment_names() -> list[str]:
    """Return the names that ``+experiment=`` takes, in alphabetical order."""
    return sorted(path.stem for path in (config_dir() / "experiment").glob("*.yaml"))


def register_resolvers() -> None:
    """Register what our files refer to: open groups, the settings that ``--help`` shows, what is fast on this machine.

    The files state only what differs from the defaults. Hydra refuses keys that no file mentions (its struct flag) and
    would require a plus sign for ``args.weight_decay=0.1``; in an open group ``ExperimentSchema.check`` decides.
    """
    _store_open_groups({})
    OmegaConf.register_new_resolver("settings_help", _settings_help, replace=True)
    OmegaConf.register_new_resolver("fastest", _fastest, replace=True)


def _fastest(name: str, *, _root_: DictConfig) -> Any:
    from portico.arguments import fastest_arguments

    args = _root_.args
    # The file of the group sets `args.use_cpu`, unless the command does.
    is_set = not OmegaConf.is_interpolation(args, "use_cpu") and args.get("use_cpu")
    use_cpu = is_set or OmegaConf.select(_root_, "accelerator") == "cpu"
    model = _root_.get("model") or {}
    made_here = str(model.get(TARGET)).startswith("portico.") and model.get("name_or_path") is None
    # Models that an experiment makes from scratch are small.
    return fastest_arguments(use_cpu=bool(use_cpu), small_model=made_here)[name]


def complete_all_settings() -> None:
    """Make tab completion offer every setting of the chosen experiment, and not only those that a file mentions.

    Hydra completes the keys of the composed configuration, so the settings are added to it, below what the files say.
    """
    line = re.sub(r"(?<=\s)experiment=(?=\S+\s)", "+experiment=", os.environ.get("COMP_LINE", ""))
    os.environ["COMP_LINE"] = line
    complete_words = line.split() if line.endswith(" ") else line.split()[:-1]
    overrides = [word for word in complete_words if "=" in word and not word.startswith("-")]
    folder = re.search(r"(?:--config-dir|-cd)[ =](\S+)", line)
    if folder is not None:
        overrides.append(f"hydra.searchpath=[file://{Path(folder[1]).absolute()}]")
    with suppress(InputError):
        settings = _compose_plain(translate_arguments(overrides))
        if settings.get(TARGET):
            _store_open_groups(_load_schema(settings).defaults())


def _store_open_groups(values: Mapping[str, Mapping[str, object]]) -> None:
    groups = {name: DictConfig(dict(values.get(name, {})), flags={"struct": False}) for name in OPEN_GROUPS}
    ConfigStore.instance().store(name="open_groups", node=DictConfig(groups))


def to_plain(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain containers, every reference resolved."""
    with explained():
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))


def check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings completed with the defaults of their groups; refuse settings that cannot be used."""
    if not settings.get(TARGET):
        names = experiment_names()
        raise InputError(
            f"No experiment was chosen; there are: {', '.join(names)}. Start one with +experiment=<name>, as in: "
            f"portico train +experiment={names[0]}. All groups and settings are listed by --help."
        )
    for name in OPEN_GROUPS:
        # A group that an experiment does not use is null.
        if not isinstance(settings.get(name), Mapping) and (name in _OWN_KEYS or settings.get(name) is not None):
            raise InputError(
                f"`{name}={settings.get(name)}` is not a group of settings; set its keys: {name}.<key>=<value>."
            )
    read_goals(settings["objective"])
    if not isinstance(settings["print_config"], bool):
        raise InputError(f"print_config={settings['print_config']} is unknown; set it to true or false.")
    check_folder_settings(settings)
    from portico.experiments.experiment import complete_settings

    schema = _load_schema(settings)
    schema.check(settings, _OWN_KEYS)
    if settings["mode"] not in schema.modes:
        raise InputError(
            f"mode={settings['mode']} is not a mode of this experiment; set it to one of {', '.join(schema.modes)}."
        )
    return complete_settings(settings)


def settings_to_run(config: DictConfig) -> dict[str, Any]:
    """Return checked settings of a configuration that will run; a logger whose package is missing is refused."""
    settings = to_plain(config)
    loggers = settings["logger"]
    for name, entry in loggers.items() if isinstance(loggers, Mapping) else ():
        path = str(entry.get(TARGET)) if isinstance(entry, Mapping) else ""
        package = _PACKAGES_OF_LOGGERS.get(path.rpartition(".")[2])
        if package is not None and find_spec(package) is None:
            raise MissingPackageError(
                f"The entry `logger.{name}` needs {package}, which is not installed; install it with "
                f"`pip install {package}`, or choose another entry."
            )
    return check_settings(_adopt_run_settings(settings, HydraConfig.get().overrides.task))


def _adopt_run_settings(settings: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings of an evaluation or a prediction as the run trained with them, except those in overrides.

    The model in the folder of a run was trained on its windows and chosen by its metric. Classes outside portico are
    named by the command only.
    """
    model = settings.get("model")
    name = model.get("name_or_path") if isinstance(model, Mapping) else None
    if settings.get("mode") not in ("evaluate", "predict") or name is None or not (Path(name) / CONFIG_FILE).is_file():
        return settings
    from portico.trust.files import plain_yaml  # imports torch, which a command that is refused does not need

    try:
        recorded = plain_yaml(read_text(Path(name) / CONFIG_FILE))
    except (OSError, ValueError, yaml.YAMLError):  # not a configuration of ours
        return settings
    keys = {override.lstrip("+~").partition("=")[0] for override in overrides}
    for group in _GROUPS_OF_RUNS:
        its = recorded.get(group) if isinstance(recorded, Mapping) else None
        if group in keys or not isinstance(its, Mapping) or not isinstance(settings.get(group), Mapping):
            continue
        set_here = {key for key in settings[group] if f"{group}.{key}" in keys}
        if its.get(TARGET) != settings[group].get(TARGET):
            if TARGET in set_here or not str(its.get(TARGET)).startswith("portico."):
                continue
            settings[group] = {key: settings[group][key] for key in set_here}
        settings[group] |= {key: value for key, value in its.items() if key not in set_here}
    return settings


def instantiate_experiment(settings: Mapping[str, Any], output_dir: str) -> "Experiment":
    """Return the experiment of checked settings, with every object built that has a ``_target_``."""
    from portico.experiments.experiment import build_experiment

    groups = {name: _build_entries(name, values) for name, values in settings.items() if name not in _OWN_KEYS}
    groups["objective"] = read_goals(settings["objective"]) if settings.get("objective") else {}
    for name in _OBJECT_GROUPS:
        entries = settings.get(name) or {}
        if not isinstance(entries, Mapping):  # in a file that no composition has written
            raise InputError(f"`{name}={str(entries)[:80]}` is not a mapping; set it to entries by name.")
        # An entry that is set to null is left out.
        groups[name] = [_build_entry(f"{name}.{key}", entry) for key, entry in entries.items() if entry is not None]
    return build_experiment(groups, output_dir)


def _build_entry(key: str, entry: object) -> Any:
    if not isinstance(entry, Mapping) or TARGET not in entry:
        group, _, name = key.partition(".")
        choice = f"{group}={name}" if (config_dir() / group / f"{name}.yaml").is_file() else f"{key}.{TARGET}=<class>"
        elsewhere = OPTIONS_ELSEWHERE.get(name)
        raise InputError(
            f"The entry `{key}` names no class ({TARGET}); "
            + (
                f"use {elsewhere}."
                if elsewhere
                else f"add {choice} to the command, or remove what it sets of `{key}`."
            )
        )
    return built(key, entry)


def _build_entries(group: str, values: object) -> Any:
    """Build every entry with a ``_target_`` inside a group; the experiment builds the group itself."""
    if not isinstance(values, Mapping):
        return values
    return {name: value if name == TARGET else built(f"{group}.{name}", value) for name, value in values.items()}


def _settings_help(*, _root_: DictConfig) -> str:
    groups = {str(name): _root_[name] for name in _root_ if name != "hydra"}
    settings = to_plain(DictConfig(groups, parent=_root_._get_parent()))
    if not settings.get(TARGET):
        return "They are listed once an experiment is chosen: --help +experiment=mrc"
    return _load_schema(settings).help(settings)
