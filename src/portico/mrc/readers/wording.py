"""How received values are shown in error messages: short, on one line."""

from collections.abc import Mapping
from typing import Any

_SHOWN_CHARACTERS = 60
_SHOWN_KEYS = 8


def shorten(value: Any) -> str:
    """Return the value as Python would show it, cut to about 60 characters."""
    text = value if isinstance(value, str) else repr(value)
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
    return repr(cut) if isinstance(value, str) else cut


def found(value: Any) -> str:
    """Return a clause that says what stands where something else was wanted."""
    if isinstance(value, Mapping):
        keys = ", ".join(f"`{key}`" for key in list(value)[:_SHOWN_KEYS])
        return f"an object with the keys {keys} was found" if keys else "an empty object was found"
    if isinstance(value, list):
        return f"a list of {len(value)} was found"
    return "nothing was found" if value is None else f"{shorten(value)} was found"
