import logging
from pathlib import Path

from portico.errors import InputError

logger = logging.getLogger(__name__)

_NAMED_IN_WARNING = 3


class Defects:
    """The unusable records of one file: the first one raises, or, when skipping, all are collected for one warning.

    Args:
        path: The file, for the messages.
        skip_invalid: Whether unusable records are left out instead of raising.
    """

    def __init__(self, path: Path, *, skip_invalid: bool) -> None:
        self.path = path
        self.messages: list[str] = []
        self._skip_invalid = skip_invalid

    def add(self, place: str, problem: str) -> None:
        """Note one defect.

        Raises:
            InputError: Unless unusable records are skipped.
        """
        message = f"{place}: {problem}"
        if not self._skip_invalid:
            raise InputError(
                f"{self.path}, {message} Correct the file, or set `skip_invalid=True` (`data.skip_invalid=true` in a "
                "command) to leave such records out."
            )
        self.messages.append(message)

    def warn(self) -> None:
        """Log how many records were left out, and name the first few."""
        if self.messages:
            named = " | ".join(self.messages[:_NAMED_IN_WARNING])
            logger.warning(
                "%s: left out %d unusable record(s), the first being: %s", self.path, len(self.messages), named
            )
