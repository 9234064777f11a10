"""Generated pages: the keys of the configuration, the commands, and the event table; running it writes them.

The keys come from the classes that the files of ``conf`` name, the commands from their argument parsers, and the
events from the docstring of :mod:`portico.loop.run`.
"""

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from portico.__main__ import COMMANDS, build_parser
from portico.arguments import TrainingArguments
from portico.cli.composition import compose, config_dir, experiment_names
from portico.experiments.experiment import TARGET, iterate_groups, path_of
from portico.experiments.settings import NO_DEFAULT, Setting, schema_of
from portico.gradient_descent import run as gradient_descent_run
from portico.loop import run
from portico.trust.names import import_target

FOLDER = Path(__file__).parent / "reference"

_KEYS_HEAD = """\
# Configuration keys

What `portico train`, or `python train.py`, can be told: `group=file` chooses a file, `key=value` sets a key. An
unknown key is refused before any work, with the nearest valid ones. `--help experiment=NAME` prints the keys of one
experiment, and `--cfg job` the configuration that a command composes.

This page is generated from the classes that the files name: `python docs/reference_pages.py`.

## Experiments

| `experiment=` | trains |
| --- | --- |
"""
_COMMANDS_HEAD = """\
# Commands

[Installing portico](../getting_started.md) brings the command `portico`; `python -m portico` is the same.

This page is generated from the commands themselves: `python docs/reference_pages.py`.
"""
_TRAIN = """
## portico train

In a checkout also `python train.py`. The words that follow are overrides of a Hydra configuration: `group=file` and
`key=value`, of which [a page](config_keys.md) lists all. Of Hydra's own options these are used most:

| Option | Effect |
| --- | --- |
| `-m`, `--multirun` | a run for each combination of values: [sweeps](../sweeps.md) |
| `--help experiment=NAME` | every key of an experiment, with its value |
| `--cfg job` | print the configuration and run nothing |
| `--config-dir FOLDER` | add files of your own to the groups |

```text
"""
# What the groups are about whose keys belong to other groups, to Hydra or to classes of other packages.
_ABOUT = {
    "callbacks": "Callbacks of Lightning or transformers; several as `callbacks=[early_stopping,lr_monitor]`. "
    "`callbacks.NAME._target_=package.Class` adds any other, with its arguments as keys.",
    "logger": "Lightning's loggers; several as `logger=[csv,tensorboard]`.",
    "debug": "What cuts a run down.",
    "speed": "Training arguments that are fastest on this machine.",
    "launcher": "Where the jobs of a sweep run: [sweeps](../sweeps.md).",
    "sweep": "Sweeps that are set up: [sweeps](../sweeps.md).",
}
_OWN_SECTIONS = ("experiment", "hydra", "paths")
_WITH_CLASSES = ("trainer", "args", "task", "model", "data", "preprocess", "postprocess", "metric", "strategy")


# ---------------------------------------------------------------------------------------- keys of the configuration


def config_keys() -> str:
    """Return the page of all groups, their files, the classes these name and the keys of each class."""
    text = _KEYS_HEAD + "".join(_file_row(name, "experiment") for name in experiment_names())
    text += "\n## Keys without a group\n\n| Key | Default | Meaning |\n| --- | --- | --- |\n" + "".join(_root_rows())
    classes = _classes()
    others = {path.name for path in config_dir().iterdir() if path.is_dir()} - {*_WITH_CLASSES, *_OWN_SECTIONS}
    for group in (*_WITH_CLASSES, *sorted(others)):
        files = sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))
        about = f"{_ABOUT[group]}\n\n" if group in _ABOUT else ""
        text += f"\n## {group}\n\n{about}| `{group}=` | |\n| --- | --- |\n"
        text += "".join(_file_row(name, group) for name in files)
        text += "".join(
            _class_section(group, target, *found) for (name, target), found in classes.items() if name == group
        )
    return text


def _classes() -> dict[tuple[str, Any], tuple[dict[str, Setting], list[str]]]:
    """Return the keys of each class by group, and the experiments that build it; none if only a file names it."""
    found: dict[tuple[str, Any], tuple[dict[str, Setting], list[str]]] = {}
    for experiment in experiment_names():
        for one in iterate_groups(compose(experiment=experiment)):
            found.setdefault((one.name, one.target), (dict(one.settings.known), []))[1].append(experiment)
    for group in ("data", "metric", "model", "postprocess", "preprocess", "task"):
        for path in sorted((config_dir() / group).glob("*.yaml")):
            name = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get(TARGET)
            if name and (group, target := import_target(TARGET, name)) not in found:
                found[group, target] = (dict(schema_of(target).known), [])
    return found


def _class_section(group: str, target: Any, keys: dict[str, Setting], users: list[str]) -> str:
    places = f", in {', '.join(f'`{name}`' for name in users)}" if users else ""
    text = f"\n### {target.__name__}\n\n`{path_of(target)}`{places}.\n\n"
    if group == "args":
        inherited = dict(schema_of(TrainingArguments).known)
        keys = {name: one for name, one in keys.items() if inherited.get(name) != one}
        text += "The [training arguments](../training_arguments.md)"
        if not keys:
            return f"{text}.\n"
        text += ", and:\n\n"
    text += "| Key | Value | Default | Meaning |\n| --- | --- | --- | --- |\n"
    return text + "".join(_key_row(group, name, one) for name, one in keys.items())


def _key_row(group: str, name: str, one: Setting) -> str:
    default = "" if one.default is NO_DEFAULT else f"`{_plain(one.default)}`"
    return _row(f"`{group}.{name}`", str(one.rule or ""), default, _as_code(one.help))


def _plain(value: Any) -> str:
    """Return a default as the command line writes it."""
    if callable(value) or type(value).__repr__ is object.__repr__:
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, tuple | list):
        return f"[{','.join(map(_plain, value))}]"
    if value == "":
        return '""'
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _as_code(text: str) -> str:
    """Return a line of help with what looks like code as code."""
    return re.sub(r"(?<!\S)([a-z]\w*(?:[._]\w+)+(?:=[^\s<,;]+)?)(?=[.,;:)]?(?:\s|$))", r"`\1`", text)


def _root_rows() -> Iterator[str]:
    """Yield a row for each key in the root file; its comments say what they are."""
    parent = ""
    for line in (config_dir() / "config.yaml").read_text(encoding="utf-8").split("_self_")[1].splitlines():
        parts = re.fullmatch(r"( *)(\w+):(?: (\S.*?))?(?: # (.*))?", line)
        if parts is None:
            continue
        indent, name, value, comment = parts.groups()
        if value is None:
            parent = name
        else:
            yield _row(f"`{parent}.{name}`" if indent else f"`{name}`", f"`{value}`", comment or "")
    yield _row("`paths.output_dir`", "`outputs/NAME/DATE_TIME`", "folder of the run")
    yield _row("`paths.sweep_dir`", "`multirun/NAME/DATE_TIME`", "folder of a sweep, with a folder for each run")


def _file_row(name: str, group: str) -> str:
    """Return a row with the first sentence of the comment that a file of ``conf`` begins with."""
    lines = (config_dir() / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = " ".join(line[2:] for line in lines if line.startswith("# ") and not line.startswith("# @"))
    sentence = re.split(r"(?<=[^.][.?]) (?=[A-Z`]|[a-z]+\.)", comment, maxsplit=1)[0]
    return _row(f"`{name}`", _as_code(re.sub(r"(, \.\.|(?<!\.))\.$", "", sentence)))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("<", "&lt;") for cell in cells) + " |\n"


# ------------------------------------------------------------------------------------------------------- commands


def commands() -> str:
    """Return the page of all sub-commands: purpose, usage, options and examples."""
    header = yaml.safe_load((config_dir() / "hydra" / "default.yaml").read_text(encoding="utf-8"))["help"]["header"]
    text = _COMMANDS_HEAD + _described(build_parser(), "portico")
    for name in COMMANDS:
        if name == "train":
            examples = header.partition("\n\n")[2]
            text += f"{_TRAIN}{examples.rstrip()}\n```\n"
        else:
            text += _described(import_module(f"portico.commands.{name}").build_parser(), f"portico {name}")
    return text


def _described(parser: argparse.ArgumentParser, title: str) -> str:
    positional = [
        f"[{one.dest.upper()}]" if one.nargs == "?" else one.dest.upper()
        for one in parser._actions
        if not one.option_strings
    ]
    usage = re.sub(r"^ +", "", parser.usage or " ".join([title, "[OPTIONS]", *positional]), flags=re.MULTILINE)
    text = f"\n## {title}\n\n{' '.join((parser.description or '').split())}\n\n```text\n{usage}\n```\n\n"
    text += "| Option | Effect |\n| --- | --- |\n"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            text += "".join(_row(f"`{one.dest}`", one.help or "") for one in action._choices_actions)
            continue
        shown = f" {action.metavar}" if action.metavar and action.nargs != 0 else ""
        names = [f"`{flag}{shown}`" for flag in action.option_strings] or [f"`{action.dest.upper()}`"]
        text += _row(", ".join(names), (action.help or "") % vars(action))
    return text + (f"\n```text\n{parser.epilog.strip()}\n```\n" if parser.epilog else "")


# -------------------------------------------------------------------------------------------------- the event table

_EVENTS_HEAD = """\
# The event table

Lightning runs the loops, and portico calls your methods and callbacks from Lightning's hooks, in the order of
`transformers.Trainer`. Overrides and callbacks therefore see the same state at the same moment.

This page is generated from the docstring of `portico.loop.run`: `python docs/reference_pages.py`.

## The loop

```text
LOOP
```

## Which hook does what

`B` is a Lightning callback of portico, the first of all, which moves the state of the trainer before any other looks
at it; `M` is [`TrainerModule`](../reference/trainers.md), the `LightningModule` around your model; `T` is a method of
the trainer.

| Lightning | Hugging Face |
| --- | --- |
"""
_EVENTS_TAIL = """
## Callbacks of both kinds

Callbacks of transformers get their events at the places of the first table. Callbacks of Lightning
(`lightning_callbacks=`) get Lightning's, after portico's own: when `on_train_batch_end` reaches them, the step is
counted, and logs, evaluations and checkpoints of that step are done. A step is an optimizer step in
`trainer.state.global_step` and in `trainer.lightning_trainer.global_step`; `batch_idx` counts batches.

A subclass may override every public method named above. If it overrides `training_step`, backward runs where its code
calls `self.accelerator.backward(loss)`; otherwise Lightning runs it right after the method.

## AllenNLP's trainer

The order of `GradientDescentTrainer` in the same loops; `<...>` marks callbacks of AllenNLP, `[...]` those of Hugging
Face, `n` is the number of the optimizer step, from 1.

```text
ALLENNLP
```
"""


def events() -> str:
    """Return the page of the loop and of what each hook of Lightning does."""
    doc = inspect.getdoc(run) or ""
    loop = textwrap.dedent(doc.partition("marked::\n\n")[2].partition("\n\nWhich")[0])
    allennlp = textwrap.dedent((inspect.getdoc(gradient_descent_run) or "").partition("from 1::\n\n")[2])
    rows: list[list[str]] = []
    for line in doc.split(f"{'=' * 45}  ")[2].splitlines()[1:]:
        hook, text = line[:45].strip(), line[45:].strip()
        if hook:
            rows.append([hook, text])
        else:
            rows[-1][1] += f" {text}"
    table = "".join(_row(hook.replace("``", "`"), text.replace("``", "`")) for hook, text in rows)
    notes = doc.rpartition("=\n\n")[2].replace("``", "`")
    return f"{_EVENTS_HEAD.replace('LOOP', loop)}{table}\n{notes}\n{_EVENTS_TAIL.replace('ALLENNLP', allennlp)}"


def pages() -> dict[Path, str]:
    """Return the text of each generated page by its path."""
    return {
        FOLDER / "config_keys.md": config_keys(),
        FOLDER / "commands.md": commands(),
        FOLDER.parent / "concepts" / "events.md": events(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
