"""What all commands share: an error becomes a sentence and an exit code."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Protocol

from portico.errors import InputError, ends_with_its_reader, exit_with_error


class Command(Protocol):
    def __call__(self, arguments: Sequence[str] | None = None) -> None: ...


def command(main: Callable[[Sequence[str]], None], *, error_code: int = 1) -> Command:
    """Make a command of a function of arguments, by default the arguments of the command line.

    Input that cannot be used is explained on stderr, in one paragraph, before the command exits with ``error_code``.
    """

    @ends_with_its_reader
    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> None:
        try:
            main(sys.argv[1:] if arguments is None else list(arguments))
        except InputError as error:
            exit_with_error(str(error), error_code)

    return run
