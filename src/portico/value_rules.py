"""What a setting that came as a plain value, such as from a command line, may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portico.errors import InputError

_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a text",
    list: "a list",
    type(None): "null",
}


@dataclass(frozen=True)
class Rule:
    """What one setting may be.

    Args:
        kinds: Types it may have; an integer passes for a number, a truth value for neither.
        least: Smallest number allowed; ``None`` for no bound.
    """

    kinds: tuple[type, ...]
    least: float | None = None

    def allows(self, value: Any) -> bool:
        """Return whether ``value`` is of an allowed type and in range."""
        of_kind = type(value) in self.kinds or (type(value) is int and float in self.kinds)
        # A NaN is not smaller than the bound either, and must not pass.
        return of_kind and (self.least is None or not isinstance(value, int | float) or value >= self.least)

    def __str__(self) -> str:
        words = [_WORDS[kind] for kind in self.kinds if kind is not type(None)]
        if self.least is not None:
            words[-1] += f" of {self.least:g} or more"
        if type(None) in self.kinds:
            words.append(_WORDS[type(None)])
        return ", or ".join(words)


def check_values(group: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Refuse the first value that its rule does not allow; values without a rule pass.

    Args:
        group: Where the values stand, for the message: ``"data"`` in ``data.seed``.
        values: Values by name.
        rules: What each may be.

    Raises:
        InputError: Names the setting, what came and what is allowed.
    """
    for name, value in values.items():
        rule = rules.get(name)
        if rule is not None and not rule.allows(value):
            raise InputError(f"`{group}.{name}={value}` cannot be used; set it to {rule}.")
