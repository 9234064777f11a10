"""Hydra's and OmegaConf's errors in one paragraph: what was given, what is allowed, what to set."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

from hydra.errors import (
    CompactHydraException,
    ConfigCompositionException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from portico.errors import InputError, nearest_names
from portico.experiments.settings import config_dir, first_guesses, suggestion

CONFIG_ERRORS = (CompactHydraException, OmegaConfBaseException)
_WORDS = {"None": "null", "True": "true", "False": "false"}
# Groups in which any key can be set; which of them mean something, the experiment says.
OPEN_GROUPS = (
    "trainer",
    "args",
    "task",
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
# Keys that every experiment has, next to those of its class.
EVERYWHERE = ("experiment", "launcher", "sweep", "debug", "hydra")
TOP_LEVEL_NAMES = (
    *(*OPEN_GROUPS, "name", "tags", "mode", "overwrite", "print_config", "allennlp_config"),
    *EVERYWHERE,
)
# Files that other templates have, and the settings that do the same here.
OPTIONS_ELSEWHERE = {
    **{name: f"strategy={name}" for name in ("cpu", "gpu", "ddp", "fsdp", "deepspeed", "auto")},
    "ddp_sim": "strategy=ddp strategy.accelerator=cpu",
    "mps": "strategy.accelerator=mps",
    "trainer=default": "strategy=auto, and leave trainer to the experiment",
    "callbacks=default": "callbacks=[early_stopping,lr_monitor,rich_progress_bar], or some of them",
    "model_checkpoint": "args.save_strategy, args.save_steps and args.save_total_limit",
    "model_summary": "callbacks=rich_model_summary",
    "launcher=slurm": "launcher=submitit_slurm",
    "launcher=submitit": "launcher=submitit_local or launcher=submitit_slurm",
    "fast_dev_run": "debug=default",
    "many_loggers": "logger=[csv,tensorboard,wandb], or some of them",
}


# What a group has no file for can often be set by a key.
OTHERS_OF_GROUP = {
    "strategy": "Another strategy of Lightning is set by strategy.strategy={}.",
    "data": "A dataset of the hub is set by data.dataset_name={}, files by data.train_file.",
    "model": "A folder or a model of the hub is set by model.name_or_path={}.",
}
_USELESS_COMMA = re.compile(r",\s*(?=$|[],)}])")


@contextmanager
def explained(names: Callable[[], Collection[str]] = lambda: TOP_LEVEL_NAMES) -> Iterator[None]:
    """Turn errors of the configuration into ``InputError``; ``names`` is passed to :func:`explain`."""
    try:
        yield
    except CONFIG_ERRORS as error:
        raise InputError(explain(error, names)) from error
    except ValueError as error:
        if "Config group override must be" not in str(error):
            raise
        raise InputError(f"{error}; give the group the name of a file, as in debug=default.") from error


def translate_message(message: str) -> str:
    """Return a message with the values of Python code as the command line takes them: null, true and false."""
    parts = message.split("`")
    for number, part in enumerate(parts):
        words = (
            r"\b(None|True|False)\b" if number % 2 else r"(?<=\bor )(None)\b|\b(True|False)(?= or )|(?<= or )(False)\b"
        )
        parts[number] = re.sub(words, lambda found: _WORDS[found[0]], part)
    return "`".join(parts)


def explain(error: Exception, names: Callable[[], Collection[str]]) -> str:
    """Return what is wrong with the configuration, as one paragraph; ``names`` returns the keys that may be set."""
    if isinstance(error, OverrideParseException):
        without = _USELESS_COMMA.sub("", error.override)
        if without != error.override:
            return (
                f"Cannot read '{error.override}': a value is missing after a comma. Write '{without}', without spaces "
                "between the values."
            )
        reason = _one_line(error).split(" See https://")[0]
        if not error.override.isascii():
            return (
                f"Cannot read '{error.override}' ({reason}). Letters beyond ASCII are read only in quotes, and not "
                "inside of shuffle(), sort() or tag(); write key='value', or key='first','second' for a sweep."
            )
        return (
            f"Cannot read '{error.override}' ({reason}). Write key=value, and quote a value that holds spaces, "
            "commas, brackets or an equals sign: 'key=\"some value\"'."
        )
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        elsewhere = OPTIONS_ELSEWHERE.get(f"{group}={option}", OPTIONS_ELSEWHERE.get(option))
        if elsewhere is not None:
            return f"'{group}={option}' names no file of the group '{group}'; use {elsewhere}."
        others = f" {OTHERS_OF_GROUP[group].format(option)}" if group in OTHERS_OF_GROUP else ""
        return (
            f"'{group}={option}' names no file of the group '{group}'{nearest_names(option, error.options)} "
            f"Choose one of: {', '.join(error.options)}.{others}"
        )
    if isinstance(error, MissingConfigException):
        return (
            f"{_one_line(error)}; leave --config-name out, or name the folder of your own file with --config-dir. "
            "A trained model is evaluated with mode=evaluate."
        )
    if "config directory" in str(error):  # Hydra's own words for what is not there
        return f"{_one_line(error)}; name a folder of configuration files with --config-dir."
    if isinstance(error, MissingMandatoryValue):
        return f"'{error.full_key}' has no value and no default; add it to the command: {error.full_key}=<value>."
    if isinstance(error, OmegaConfBaseException):
        reason = str(error).splitlines()[0]
        return f"'{error.full_key}' cannot be resolved ({reason}); set it, or the key that it refers to."
    if isinstance(error.__cause__, ConfigKeyError | ConfigAttributeError):
        return _describe_unknown_key(error, names)
    return _add_advice(error, names) if isinstance(error, ConfigCompositionException) else _one_line(error)


def _describe_unknown_key(error: Exception, names: Callable[[], Collection[str]]) -> str:
    quoted = re.search(r"'([^']+)'", str(error))
    assert quoted is not None, f"Hydra no longer quotes the key: {error}"
    key = quoted[1]
    group = key.split(".")[0]
    around = getattr(error.__cause__, "parent_node", None)
    if group == "hydra" and isinstance(around, Mapping):
        parent, _, missing = str(getattr(error.__cause__, "full_key", key)).rpartition(".")
        known = [f"{parent}.{name}" for name in around]
        owners = _files_with(parent, missing)
        if owners:
            group_of_files = parent.replace(".", "/")
            chosen = " or ".join(f"{group_of_files}={name}" for name in owners)
            return f"'{key}' is not a setting of what is chosen; add {chosen}, which has it."
        nearest = get_close_matches(f"{parent}.{missing}", known, n=3, cutoff=0.8)
        if not nearest and OmegaConf.get_type(around) is dict:  # without fields, as the environment variables of a job
            return f"'{key}' is not in {parent}, which takes any key; write +{key}=<value> to add it."
        return f"'{key}' is not a setting; " + (
            f"the nearest valid names are: {', '.join(nearest)}."
            if nearest
            else f"the settings of {parent} are: {', '.join(map(str, around))}."
        )
    if group in TOP_LEVEL_NAMES:
        return f"'{key}' is not a setting; --cfg all --package {group} shows the settings of '{group}'."
    is_top_level = bool(get_close_matches(key, TOP_LEVEL_NAMES, cutoff=0.75)) and key not in first_guesses()
    # The keys of an experiment are known once its classes are imported, which takes seconds.
    meant = suggestion(key, TOP_LEVEL_NAMES if is_top_level else names())
    if "use " in meant or re.search(r"\w\.\w", meant):
        return f"'{key}' is not a setting{meant}"
    return f"'{key}' is not a setting{suggestion(group, TOP_LEVEL_NAMES)} All: {', '.join(TOP_LEVEL_NAMES)}."


def _files_with(parent: str, key: str) -> list[str]:
    """Return the files of a group of Hydra that have a key, such as ``n_trials`` of the sweepers."""
    folder = config_dir().joinpath(*parent.split("."))
    files = sorted(folder.glob("*.yaml"))
    return [file.stem for file in files if re.search(rf"^{re.escape(key)}:", file.read_text(encoding="utf-8"), re.M)]


def _add_advice(error: Exception, names: Callable[[], Collection[str]]) -> str:
    """Return Hydra's sentence about an override, with what to do where Hydra does not say it."""
    message = _one_line(error)
    deleted = re.search(r"Could not delete from config\. '([^']+)' does not exist", message)
    if deleted is not None:
        return (
            f"'~{deleted[1]}' removes nothing: no file sets '{deleted[1]}', so that it has its default. Leave it out."
        )
    chosen = re.search(r"Could not override '([^']+)'\. No match in the defaults list", message)
    if chosen is not None and chosen[1] in first_guesses():
        return f"'{chosen[1]}' is not a setting{suggestion(chosen[1], names())}"
    merged = re.match(r"Error merging override (.*)", message)
    if merged is not None and error.__cause__ is not None:
        reason = str(error.__cause__).splitlines()[0]
        key = merged[1].lstrip("+~").partition("=")[0]
        is_item = re.fullmatch(r"(.+)\.\d+", key)
        advice = f"write the whole list, {is_item[1]}=[<values>]" if is_item else "give a value that fits there"
        return f"'{merged[1]}' cannot be set ({reason}); {advice}."
    return message


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
