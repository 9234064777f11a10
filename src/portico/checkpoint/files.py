"""Files that are written whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a file to write to; it replaces ``path`` on success and is removed on failure.

    Raises:
        OSError: If the file cannot be written, with ``path``, which the error of a full disk does not name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.partial")
    try:
        yield staging
        staging.replace(path)
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        staging.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file that is whole, or as it was before, if the process is killed or the disk is full."""
    with replaced(path) as staging:
        staging.write_text(text, encoding="utf-8", errors="replace")
