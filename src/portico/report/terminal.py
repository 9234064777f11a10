"""What commands print with rich."""

from typing import Any

from rich.console import Console
from typing_extensions import override


def plain_console(**options: Any) -> Console:
    """Return a console that prints strings as they are, also in tables: paths and values may hold brackets and colons.

    By default rich reads ``[v2]`` as the name of a style, drops it, and raises for ``[/v2]``. ``options`` are further
    arguments of the console.
    """
    return _Console(markup=False, emoji=False, **options)


class _Console(Console):
    @override
    def on_broken_pipe(self) -> None:
        raise  # rich would exit with code 1; the command has one for this
