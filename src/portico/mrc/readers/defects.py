import logging

from portico.errors import InputError

logger = logging.getLogger(__name__)

_NAMED_IN_WARNING = 3


class InvalidRecord(ValueError):
    """One record cannot be used; the message says why, without the place."""


class Defects:
    """The unusable records of one source: the first one raises, or, when skipping, all are collected for one warning.

    Args:
        source: The file or data set, for the messages.
        skip_invalid: Whether unusable records are left out instead of raising.
    """

    def __init__(self, source: object, *, skip_invalid: bool) -> None:
        self.source = source
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
                f"{self.source}, {message} Correct the file, or set `skip_invalid=True` (`data.skip_invalid=true` in "
                "a command) to leave such records out."
            )
        self.messages.append(message)

    def warn(self) -> None:
        """Log how many records were left out, name the first few; all of them are listed at level DEBUG."""
        if not self.messages:
            return
        named = " | ".join(self.messages[:_NAMED_IN_WARNING])
        logger.warning(
            "%s: left out %d unusable record(s), the first being: %s", self.source, len(self.messages), named
        )
        for message in self.messages:
            logger.debug("%s: left out %s", self.source, message)
