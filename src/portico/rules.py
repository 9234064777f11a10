"""Rules for the values of settings and training arguments; see :func:`portico.arguments.argument_rules`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from portico.errors import InputError

WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a mapping",
    NoneType: "null",
}
_TRUE = ("true", "yes", "on", "1")
_PLAIN = (bool, int, float, str, list, dict)
_PYTHON_WORDS = {**WORDS, bool: "True or False", NoneType: "None"}


def kind_of(value: object) -> type:
    """Return the plain type that ``value`` is an instance of, its own type if there is none.

    A ``np.float64`` is a float, an ``OrderedDict`` a dict; a Boolean is no integer.
    """
    return next((kind for kind in _PLAIN if isinstance(value, kind)), type(value))


@dataclass(frozen=True)
class Rule:
    """The values that a setting may have."""

    kinds: tuple[type, ...]
    """Types; an integer passes for a number, a Boolean for neither."""
    least: float | None = None
    """Smallest number allowed."""
    choices: tuple[object, ...] = ()
    """Further values that are allowed, besides values of ``kinds``."""
    is_finite: bool = False
    """Whether infinity is refused; NaN always is."""
    most: int | None = None
    """Largest number allowed; it goes with ``least``."""

    def allows(self, value: object) -> bool:
        """Return whether ``value`` is one of the choices, or of an allowed type and in range."""
        if value in self.choices:
            return True
        kind = kind_of(value)
        is_of_kind = kind in self.kinds or (kind is int and float in self.kinds)
        if not is_of_kind or not isinstance(value, int | float):
            return is_of_kind
        is_number = math.isfinite(value) or not (self.is_finite or math.isnan(value))
        is_small = self.most is None or value <= self.most
        return is_number and is_small and (self.least is None or value >= self.least)

    def suits(self, value: object) -> bool:
        """Return whether a Python caller may pass ``value``; transformers is more lenient than a configuration file.

        The range is not checked. A whole number passes for an integer, 0, 1 and words such as "true" for a switch, and
        an object of another class for anything.
        """
        if value is None or kind_of(value) in self.kinds:
            return True
        # Arrays of several numbers compare each of them.
        if any(isinstance(value, type(choice)) and value == choice for choice in self.choices):
            return True
        takes_numbers = int in self.kinds or float in self.kinds
        if isinstance(value, int | float):
            is_whole = float in self.kinds or not math.isfinite(value) or value == int(value)
            return (takes_numbers and is_whole) or (bool in self.kinds and value in (0, 1))
        if isinstance(value, str):
            return str in self.kinds or (bool in self.kinds and value.lower() in _TRUE)
        # The keys of a dict are read as a list of them.
        return not isinstance(value, list | tuple | dict | type) or (
            isinstance(value, tuple | dict) and list in self.kinds
        )

    def __str__(self) -> str:
        return self._describe(WORDS, str)

    def describe_in_python(self) -> str:
        """Return the rule in Python's words; ``str`` uses the words of a configuration."""
        return self._describe(_PYTHON_WORDS, repr)

    def _describe(self, names: Mapping[type, str], shown: Callable[[object], str]) -> str:
        words = [names[kind] for kind in self.kinds if kind is not NoneType]
        if words and self.least is not None:
            words[-1] += f" of {self.least:g} or more" if self.most is None else f" from {self.least:g} to {self.most}"
        if self.choices:
            words.append(f"one of {', '.join(map(shown, self.choices))}")
        if NoneType in self.kinds:
            words.append(names[NoneType])
        return ", or ".join(words)


def rule_of(annotation: Any, least: float | None = None, is_finite: bool = False) -> Rule | None:
    """Return the rule that a type annotation states; ``None`` if it mentions types that no plain value has."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds: list[type] = []
    choices: list[Any] = []
    for part in parts:
        if get_origin(part) is Literal:
            choices += get_args(part)
        elif isinstance(part, type) and issubclass(part, Enum):
            choices += [member.value for member in part]
        elif get_origin(part) in (list, Sequence):
            kinds.append(list)
        elif get_origin(part) is dict:
            kinds.append(dict)
        elif part in WORDS:
            kinds.append(part)
        else:
            return None
    return Rule(tuple(kinds), least, tuple(choices), is_finite and float in kinds)


def check_values(group: str, values: Mapping[str, Any], rules: Mapping[str, Rule | None]) -> None:
    """Refuse the first value that its rule does not allow; values without a rule pass, NaN excepted.

    They are keys of ``group``; if it is empty, they are arguments of a call.
    """
    for name, value in values.items():
        given = f"{group}.{name}={value}" if group else f"{name}={value!r}"
        if type(value) is int and abs(value) >= 2**63:
            raise InputError(f"`{given}` cannot be used, since it has more than 64 bits; set it to a smaller number.")
        is_nan = isinstance(value, float) and math.isnan(value)
        rule = rules.get(name) or (Rule((float,)) if is_nan else None)
        if rule is not None and not rule.allows(value):
            allowed = rule if group else rule.describe_in_python()
            raise InputError(f"`{given}` cannot be used; set it to {allowed}.")
