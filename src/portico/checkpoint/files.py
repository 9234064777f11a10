"""Files that are written whole or not at all, and read if they fit into the memory."""

import errno
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


# A file may be sparse: an archive holds one of any size in a few bytes, and reading it would fill the memory.
_MOST_BYTES = 4 << 30


def refuse_huge(path: Path) -> None:
    """Raise an ``OSError`` if a file is larger than any text that a run writes."""
    if path.stat().st_size > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"larger than {_MOST_BYTES >> 30} GiB, which no run writes", str(path))


def read_bytes(path: Path) -> bytes:
    """Return what is in a file; see :func:`refuse_huge`."""
    refuse_huge(path)
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; see :func:`refuse_huge`."""
    return read_bytes(path).decode("utf-8")
