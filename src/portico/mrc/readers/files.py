"""Opening a text file so that whatever prevents it is told to the user."""

import difflib
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO, cast

from portico.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file, plain or gzip-compressed (told by its first bytes), with or without a byte order mark.

    Raises:
        InputError: If there is no such file, or it cannot be read, decompressed or decoded; also while the caller
            reads and parses it.
    """
    if not path.is_file():
        raise InputError(_why_no_file(path))
    try:
        with path.open("rb") as raw, io.TextIOWrapper(_decompressed(raw), encoding="utf-8-sig") as text:
            yield text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path}: not UTF-8 text (byte 0x{byte:02x}: {error.reason}); save it as UTF-8.") from error
    except RecursionError as error:
        raise InputError(
            f"{path}: nested more deeply than any data set; give a JSON document or JSON lines."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); check that the file is whole and readable.") from error


def _decompressed(raw: IO[bytes]) -> IO[bytes]:
    magic = raw.read(len(_GZIP_MAGIC))
    raw.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if magic == _GZIP_MAGIC else raw


def _why_no_file(path: Path) -> str:
    if path.is_dir():
        return f"{path}: a folder, not a file; name one file, for instance {path / 'train.json'}."
    if not path.parent.is_dir():
        return f"{path}: no such file, nor is there a folder {path.parent}; relative paths start at {Path.cwd()}."
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "no file there has a similar name."
    return f"{path}: no such file; in {path.parent.resolve()}, {hint}"
