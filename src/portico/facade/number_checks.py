"""Numbers among the training arguments that would fail deep inside a run."""

import dataclasses
from typing import Any

from portico.errors import InputError, InputTypeError
from portico.settings import argument_rules


def check_numbers(args: Any) -> None:
    """Refuse texts in the place of numbers, as files of settings bring them along, and numbers out of range.

    Raises:
        InputError: Names the field, its value and what is allowed (a ``TypeError`` too for a text).
    """
    known = argument_rules()
    rules = {field.name: known[field.name] for field in dataclasses.fields(args) if field.name in known}
    for name, rule in rules.items():
        value = getattr(args, name)
        if isinstance(value, str) and {int, float}.intersection(rule.kinds):
            raise InputTypeError(f"`{name}={value!r}` is a text; set it to {rule}.")
    if args.max_steps > 0:
        # Scripts that count steps write -1 here.
        rules.pop("num_train_epochs")
    for name, rule in rules.items():
        value = getattr(args, name)
        if rule.least is not None and isinstance(value, int | float) and not value >= rule.least:
            raise InputError(f"`{name}={value!r}` cannot be used; set it to {rule}.")
