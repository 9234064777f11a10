"""Rules for the values of settings and training arguments; see :func:`portico.arguments.argument_rules`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType

WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a mapping",
    NoneType: "null",
}
_PYTHON_WORDS = {**WORDS, bool: "True or False", NoneType: "None"}


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
        of_kind = type(value) in self.kinds or (type(value) is int and float in self.kinds)
        if not of_kind or not isinstance(value, int | float):
            return of_kind
        is_number = math.isfinite(value) or not (self.is_finite or math.isnan(value))
        is_small = self.most is None or value <= self.most
        return is_number and is_small and (self.least is None or value >= self.least)

    def __str__(self) -> str:
        return self._in(WORDS, str)

    def in_python(self) -> str:
        """Return the rule in Python's words; ``str`` uses the words of a configuration."""
        return self._in(_PYTHON_WORDS, repr)

    def _in(self, names: Mapping[type, str], shown: Callable[[object], str]) -> str:
        words = [names[kind] for kind in self.kinds if kind is not NoneType]
        if words and self.least is not None:
            words[-1] += f" of {self.least:g} or more" if self.most is None else f" from {self.least:g} to {self.most}"
        if self.choices:
            words.append(f"one of {', '.join(map(shown, self.choices))}")
        if NoneType in self.kinds:
            words.append(names[NoneType])
        return ", or ".join(words)
