"""Records that cannot be used, and values as error messages show them."""

import logging
import reprlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from portico.errors import InputError

logger = logging.getLogger(__name__)

Placed: TypeAlias = tuple[str, Any]
"""A JSON value and where it stands in its source ("line 3"), for error messages."""

_MAX_SHOWN_CHARACTERS = 60
_MAX_SHOWN_KEYS = 8
_MAX_SHOWN_RECORDS = 3
_REPR = reprlib.Repr()
_REPR.maxlevel = _REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = 10
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 2 * _MAX_SHOWN_CHARACTERS


class InvalidRecord(ValueError):
    """A record cannot be used; the message has the reason without the place."""


class Defects:
    """The invalid records of one source: raised at once, or with ``skip_invalid`` collected for a single warning."""

    def __init__(self, source: object, *, skip_invalid: bool) -> None:
        self.source = source
        self.messages: list[str] = []
        self.num_records = 0
        self._skip_invalid = skip_invalid

    def add(self, place: str, problem: str, *, num_records: int = 1) -> None:
        """Add a problem that makes ``num_records`` records unusable."""
        message = f"{place}: {problem}"
        if not self._skip_invalid:
            raise InputError(
                f"{self.source}, {message} Correct the file, or skip invalid records with `skip_invalid=True` "
                "(`data.skip_invalid=true` on the command line)."
            )
        self.messages.append(message)
        self.num_records += num_records

    def warn(self) -> None:
        """Warn about the number of skipped records and show the first few; level DEBUG lists all of them."""
        if not self.messages:
            return
        shown = " | ".join(self.messages[:_MAX_SHOWN_RECORDS])
        logger.warning("%s: left out %d unusable record(s); first: %s", self.source, self.num_records, shown)
        for message in self.messages:
            logger.debug("%s: left out %s", self.source, message)


def shorten(value: Any) -> str:
    """Return the `repr` of a value, cut to about 60 characters."""
    try:
        # `reprlib` does not enter what is nested deeply, and the limits keep what the cut below would show.
        text = value if isinstance(value, str) else _REPR.repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"{type(value).__name__} too long to show"
    cut = text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "..."
    return repr(cut) if isinstance(value, str) else cut


def describe(value: Any) -> str:
    """Return a short description of a JSON value, on one line."""
    if isinstance(value, Mapping):
        keys = ", ".join(f"`{shorten(str(key))[1:-1]}`" for key in list(value)[:_MAX_SHOWN_KEYS])
        return f"an object with the keys {keys}" if keys else "an empty object"
    if isinstance(value, list):
        return f"a list of length {len(value)}"
    return "null" if value is None else shorten(value)
