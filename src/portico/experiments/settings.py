"""Settings of a class: the keys a configuration may set, what each may be, its default and its documentation.

All four are read from the fields of a dataclass, with the docstring below each, or from the parameters of a class.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, get_type_hints

import yaml

from portico.errors import InputError, nearest_names
from portico.rules import Rule, check_values, rule_of
from portico.trust.names import TARGET

# ---- The settings of a class ----

# Numbers of a model's configuration, by the first pattern that their name contains.
_RULES_OF_MODELS = {
    r"drop": Rule((float, NoneType), least=0, most=1),
    r"_eps$|_epsilon$|^initializer_": Rule((float,), least=0, is_finite=True),
    r"_token_id$": Rule((list, int, NoneType), least=0),
    r"^chunk_size_": Rule((int,), least=0),
    r"^(image|patch)_size$": Rule((list, int), least=1),
    r"^(num|n|d|max)_|_(size|embeddings|stride|num_buckets|max_distance)$": Rule((int, NoneType), least=1),
}

NO_DEFAULT: Any = inspect.Parameter.empty


@dataclass(frozen=True)
class Setting:
    """One key of a group."""

    default: Any = NO_DEFAULT
    """``NO_DEFAULT`` also where it is not known."""
    rule: Rule | None = None
    """``None``: the class itself decides."""
    help: str = ""
    """One line."""
    effective: Any = NO_DEFAULT
    """The effective default, if the class that makes the object decides it; ``NO_DEFAULT``: ``default``."""

    @property
    def shown_default(self) -> Any:
        """The default in help and completion; ``NO_DEFAULT`` where it is not known."""
        return self.default if self.effective is NO_DEFAULT else self.effective


@dataclass(frozen=True)
class GroupSchema:
    """All keys that a class takes."""

    known: Mapping[str, Setting]
    is_open: bool = False
    """Whether it takes any other key too (``**kwargs``)."""


def setting(default: object, *, least: float | None = None, is_finite: bool = True) -> Any:
    """Return a dataclass field with a lower bound; a number that is not ``is_finite`` may be infinite."""
    return field(default=default, metadata={"least": least, "is_finite": is_finite})


def further_keys(defaults: Callable[[], Mapping[str, Any]]) -> Any:
    """Return a dataclass field for a mapping that collects further keys of the group.

    ``defaults`` returns the keys that may be set, such as the fields of a model's configuration, with their effective
    defaults: ``NO_DEFAULT`` where the data decide.
    """
    return field(default_factory=dict, metadata={"further_keys": defaults})


@cache
def schema_of(target: Callable[..., Any]) -> GroupSchema:
    """Return the keys that a class or function takes; its defaults are shared, and must not be changed."""
    from portico.compat.transformers import HFTrainingArguments

    if inspect.isclass(target) and issubclass(target, HFTrainingArguments):
        return _settings_of_arguments(target)
    if dataclasses.is_dataclass(target) and inspect.isclass(target):
        return _settings_of_dataclass(target)
    return _settings_of_signature(target)


def collect_further_keys(target: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as ``target`` takes them: further keys inside the field that collects them."""
    collecting = [field for field in _fields(target) if "further_keys" in field.metadata]
    if not collecting:
        return dict(values)
    own = {field.name for field in _fields(target)}
    further = {name: value for name, value in values.items() if name not in own}
    return {name: value for name, value in values.items() if name in own} | {collecting[0].name: further}


def list_settings(part: object) -> dict[str, Any]:
    """Return the settings of an object as a report shows them: further keys next to the others."""
    if not dataclasses.is_dataclass(part):
        return {name: value for name, value in vars(part).items() if not name.startswith("_")}
    shown: dict[str, Any] = {}
    for part_field in _fields(part):
        value = getattr(part, part_field.name)
        shown.update(value if "further_keys" in part_field.metadata else {part_field.name: value})
    return shown


def _fields(target: object) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(target) if field.init] if dataclasses.is_dataclass(target) else []


def _settings_of_arguments(target: type) -> GroupSchema:
    from portico.arguments import argument_rules
    from portico.deprecated import RENAMED

    rules, docs = argument_rules(target), documentation(target)
    known = {
        field.name: Setting(_default_of(field), rules.get(field.name), docs.get(field.name, ""))
        for field in _fields(target)
    }
    older = {old: Setting(None, rules.get(old), f"Renamed to {row.new}") for old, row in RENAMED.items()}
    return GroupSchema(known | older)


def _settings_of_dataclass(target: type) -> GroupSchema:
    hints, docs = get_type_hints(target), documentation(target)
    known: dict[str, Setting] = {}
    for target_field in _fields(target):
        if "further_keys" in target_field.metadata:
            text, defaults = docs.get(target_field.name, ""), target_field.metadata["further_keys"]()
            for name, value in defaults.items():
                known[name] = Setting(rule=_rule_of_model(name), help=text, effective=value)
        else:
            rule = rule_of(
                hints[target_field.name],
                target_field.metadata.get("least"),
                target_field.metadata.get("is_finite", False),
            )
            known[target_field.name] = Setting(_default_of(target_field), rule, docs.get(target_field.name, ""))
    return GroupSchema(known)


def _rule_of_model(name: str) -> Rule | None:
    return next((rule for pattern, rule in _RULES_OF_MODELS.items() if re.search(pattern, name)), None)


def _settings_of_signature(target: Callable[..., Any]) -> GroupSchema:
    docs = documentation(target)
    known: dict[str, Setting] = {}
    is_open = False
    for function in _constructors(target):
        if function is None:  # a class of torch, which takes no keys of ours
            return GroupSchema(known)
        signature = inspect.signature(function)
        hints = _hints(function)
        for name, parameter in signature.parameters.items():
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name != "self":
                known.setdefault(name, Setting(parameter.default, rule_of(hints.get(name, Any)), docs.get(name, "")))
        is_open = any(param.kind is param.VAR_KEYWORD for param in signature.parameters.values())
        if not is_open:
            break
    return GroupSchema(known, is_open)


def _constructors(target: Callable[..., Any]) -> list[Any]:
    """Return the constructors that ``**kwargs`` pass through, in order; ``None`` for a constructor of torch."""
    if not inspect.isclass(target):
        return [target]
    owners = [owner for owner in target.__mro__[:-1] if "__init__" in vars(owner)]
    of_torch = [owner.__module__.split(".")[0] in ("torch", "torchmetrics") for owner in owners]
    if target.__module__.startswith("torchmetrics."):  # named by the user
        of_torch[0] = False
    return [None if torch else owner.__init__ for owner, torch in zip(owners, of_torch, strict=True)]  # type: ignore[misc]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # names imported for type checkers only
        return {}


def _default_of(setting: dataclasses.Field[Any]) -> Any:
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return NO_DEFAULT if setting.default is MISSING else setting.default


@cache
def documentation(target: Any) -> dict[str, str]:
    """Return one line for each field or argument, from the nearest class that documents it.

    The class documents it by the docstring below the field, else by an entry under ``Args:``, else by the field's
    ``help``.
    """
    docs: dict[str, str] = {}
    for owner in reversed(target.__mro__[:-1]) if inspect.isclass(target) else [target]:
        section = re.search(r"Args:\n((?:(?: +.*)?\n)*)", f"{inspect.getdoc(owner) or ''}\n")
        entries = re.findall(r"^ {4}(\w+): ((?:.|\n {5,})*)", section[1] if section else "", flags=re.MULTILINE)
        own = vars(owner).get("__annotations__", {})
        helps = {field.name: field.metadata.get("help") for field in _fields(owner) if field.name in own}
        docs |= {name: _one_line(text) for name, text in helps.items() if text}
        docs |= {name: _one_line(text) for name, text in entries}
        if dataclasses.is_dataclass(owner) and inspect.isclass(owner):
            docs |= _field_docstrings(owner)
    return docs


def _field_docstrings(owner: type) -> dict[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    except (OSError, SyntaxError):  # defined at a prompt
        return {}
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for statements in pairwise(tree.body):
        match statements:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = _one_line(text)
    return docs


def _one_line(text: str) -> str:
    """Return the first sentence, without markup."""
    plain = " ".join(re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "").split())
    return re.split(r"(?<=[.;]) ", plain, maxsplit=1)[0].rstrip(".;")


# ---- The settings of an experiment ----


@dataclass(frozen=True)
class KnownGroup:
    target: str
    """Dotted path of the class that the group builds."""
    settings: GroupSchema

    def values(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the values that were set in the group, without the class."""
        return {key: value for key, value in (given or {}).items() if key != TARGET}


@dataclass(frozen=True)
class ExperimentSchema:
    """All settings of an experiment whose groups build certain classes."""

    modes: Sequence[str]
    """Values of ``mode``."""
    fields: Sequence[str]
    """Keys in the root of the configuration."""
    groups: Mapping[str, KnownGroup]

    def check(self, settings: Mapping[str, Any], further: Mapping[str, Sequence[str]] | None = None) -> None:
        """Refuse settings that do not exist and values that cannot be used.

        Args:
            settings: Settings by group.
            further: Keys that the caller reads, by group; a group without keys is not checked.

        Raises:
            InputError: Names all unknown keys with the nearest known ones, or the first value that cannot be used.
        """
        unknown: dict[str, Any] = {}
        for name, keys in (further or {}).items():
            values = (settings.get(name) or {}) if keys else {}
            unknown |= {f"{name}.{key}": value for key, value in values.items() if key not in keys}
        for name, group in self.groups.items():
            values = group.values(settings.get(name))
            taken = values if group.settings.is_open else group.settings.known
            unknown |= {f"{name}.{key}": value for key, value in values.items() if key not in taken}
        known = self.names(further)
        unknown |= {
            name: value for name, value in settings.items() if name not in (TARGET, *known) and value not in ({}, None)
        }
        if unknown:
            raise InputError(" ".join(_refusal(name, value, known) for name, value in unknown.items()))
        for name, group in self.groups.items():
            rules = {key: each.rule for key, each in group.settings.known.items()}
            check_values(name, group.values(settings.get(name)), rules)

    def names(self, further: Mapping[str, Sequence[str]] | None = None) -> list[str]:
        """Return all keys that may be set, with their groups; ``further`` is as in :meth:`check`."""
        keys = {**{name: group.settings.known for name, group in self.groups.items()}, **(further or {})}
        return [*(f"{name}.{key}" for name, known in keys.items() for key in known), *sorted({*self.fields, *keys})]

    def defaults(self) -> dict[str, dict[str, Any]]:
        """Return every key of each group with its effective default; null where that is not a plain value."""
        return {
            name: {
                key: plain_value(each.shown_default) if is_plain(each.shown_default) else None
                for key, each in group.settings.known.items()
            }
            for name, group in self.groups.items()
        }

    def help(self, settings: Mapping[str, Any]) -> str:
        """Return a line for each setting: its key, its value or default, and what it means."""
        lines = [f"  group.{TARGET} names the class that takes the keys below it; yours can take its place."]
        for group, known in sorted(
            self.groups.items(), key=lambda item: len(item[1].settings.known)
        ):  # long lists last
            lines += ["", f"{group}.{TARGET}={known.target}"]
            values = known.values(settings.get(group))
            for name, each in known.settings.known.items():
                value = _format_default(values.get(name, each.shown_default))
                lines.append(f"  {f'{group}.{name}{value}':<46} {each.help}".rstrip())
        return "\n".join(lines)


def is_plain(value: object) -> bool:
    """Return whether a value can be written in YAML."""
    if isinstance(value, tuple | list):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def plain_value(value: object) -> Any:
    """Return a new value as YAML has it: no tuples, and no members of an enumeration."""
    if isinstance(value, tuple | list):
        return [plain_value(item) for item in value]
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    return str(value) if isinstance(value, str) else value


def _format_default(value: object) -> str:
    if value is NO_DEFAULT:
        return "="
    value = plain_value(value)
    if value is None:
        return "=null"
    return f"={str(value).lower() if isinstance(value, bool) else value}"


# ---- Names that were meant ----


@cache
def first_guesses() -> Mapping[str, Sequence[str]]:
    """Return what to use instead of the names that users of other tools type first."""
    entries = yaml.safe_load(Path(__file__).with_name("first_guesses.yaml").read_text(encoding="utf-8"))
    return {
        name: [answers] if isinstance(answers, str) else answers
        for names, answers in entries.items()
        for name in names.split()
    }


def suggestion(unknown: str, known: Collection[str]) -> str:
    """Return the end of a sentence about an unknown key: the key that was probably meant, or the nearest ones."""
    guess = _first_guess(unknown, known)
    return f"; use {guess}." if guess else nearest_names(unknown, known)


def _first_guess(unknown: str, known: Collection[str]) -> str | None:
    words = unknown.split(".")
    for name in (unknown, words[-1], *reversed(words[1:-1])):
        for guess in first_guesses().get(name, ()):
            # A guess is a sentence, which may name keys of several groups.
            if guess != unknown and all(key in known for key in re.findall(r"\w+\.[a-z]\w*", guess)):
                return guess
    return None


def _refusal(name: str, value: object, known: Collection[str]) -> str:
    """Return the sentence about an unknown key; the guess may have been inside its ``value``: model.optimizer.lr."""
    inside = name
    while isinstance(value, Mapping) and len(value) == 1:
        ((key, value),) = value.items()
        inside += f".{key}"
    name = inside if _first_guess(inside, known) else name
    return f"'{name}' is not a setting{suggestion(name, known)}"


def config_dir() -> Path:
    """Return the folder of the configuration files, inside an installed package or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"
