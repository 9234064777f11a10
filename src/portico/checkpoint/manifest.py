"""Whether a checkpoint is complete: its manifest lists every file with size and checksum, and is written last.

Hugging Face's checkpoints have no manifest and are taken as they are.
"""

import json
import mmap
import os
import pickle
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from portico.compat.transformers import logger
from portico.errors import InputError, InputRuntimeError

MANIFEST_FILE = "portico_manifest.json"
_CHUNK = 1 << 22
_PAGE = 1 << 12
_DAMAGE = (
    *(EOFError, OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(pickle.UnpicklingError, SafetensorError),
)


def write_manifest(folder: Path) -> None:
    """List the files below ``folder`` in its manifest, which is on the disk when this returns."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    files = {path.relative_to(folder).as_posix(): [path.stat().st_size, _page_sums(path)] for path in paths}
    with (folder / MANIFEST_FILE).open("w", encoding="utf-8") as file:
        json.dump(files, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def refresh_manifest(folder: Path) -> None:
    """Write the manifest again if files have changed since, as by a callback's ``on_save``."""
    manifest = folder / MANIFEST_FILE
    if not manifest.is_file():
        return
    listed, written = json.loads(manifest.read_text(encoding="utf-8")), manifest.stat().st_mtime_ns
    if any(not (folder / name).is_file() or (folder / name).stat().st_mtime_ns > written for name in listed):
        write_manifest(folder)


def damage(folder: Path) -> str | None:
    """Return what is wrong with the first damaged file of a checkpoint, or None."""
    try:
        listed = json.loads((folder / MANIFEST_FILE).read_bytes())
        for name, (size, checksum) in listed.items():
            file = folder / name
            if Path(name).is_absolute() or ".." in Path(name).parts:
                return f"{MANIFEST_FILE} lists {name[:100]!r}, which is outside the folder"
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes instead of {size}"
            if checksum != (_page_sums(file) if isinstance(checksum, str) else _crc32(file)):
                return f"{name} has changed since it was written (its checksum differs)"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST_FILE} cannot be read ({str(error)[:200]})"
    return None


def newest_complete(run_folder: Path, *, but: Path | None = None, up_to: int | None = None) -> Path | None:
    """Return the undamaged ``checkpoint-N`` of the highest N, at most ``up_to``; damaged ones are warned of."""
    numbered = {path: re.fullmatch(r"checkpoint-(\d{1,18})", path.name) for path in run_folder.glob("checkpoint-*")}
    steps = {path: int(match[1]) for path, match in numbered.items() if match and path.is_dir() and path != but}
    if up_to is not None:
        steps = {path: step for path, step in steps.items() if step <= up_to}
    for checkpoint in sorted(steps, key=lambda path: steps[path], reverse=True):
        wrong = damage(checkpoint)
        if wrong is None:
            return checkpoint
        logger.warning("The checkpoint %s is damaged and passed over: %s.", checkpoint, wrong)
    return None


def check_complete(folder: Path) -> None:
    """Raise ``InputError`` if the checkpoint in ``folder`` is damaged."""
    wrong = damage(folder)
    if wrong is not None:
        raise InputError(
            f"The checkpoint {folder} is damaged: {wrong}. {_way_out(folder)} If the file was changed on purpose, "
            f"delete {folder / MANIFEST_FILE}."
        )


@contextmanager
def reading(file: Path, *, into_model: bool = False) -> Iterator[None]:
    """Turn the errors of a damaged or truncated file into ``InputError``, which names the file.

    ``torch.load`` raises ``RuntimeError`` for damage, ``into_model`` for weights that do not fit the model.
    """
    errors = _DAMAGE if into_model else (*_DAMAGE, RuntimeError)
    try:
        yield
    except InputError:
        raise
    except errors as error:
        reason = str(error).split(". ")[0].splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise InputError(f"{file} cannot be read: {reason}. {_way_out(file.parent)}") from error


def of_another_model(path: Path, part: str, model: object, what: str) -> InputRuntimeError:
    """Return the error for weights or an optimizer in ``path`` that do not fit ``model``; ``what`` says which."""
    return InputRuntimeError(
        f"{path} holds the {part} of another model than {type(model).__name__}: {what}; set `resume_from_checkpoint` "
        "to a checkpoint of this model, or leave it out."
    )


def _way_out(folder: Path) -> str:
    complete = newest_complete(folder.parent, but=folder)
    if complete is None:
        return f"{folder.parent} holds no other complete checkpoint; train from the start."
    return f"Set `resume_from_checkpoint={str(complete)!r}`, the newest complete checkpoint of the run."


def _page_sums(file: Path) -> str:
    """Return a checksum of a file: the CRC-32 of the sums of its pages, as 64-bit words, and of what is left.

    It notices a changed word and pages that were lost or exchanged, in an eighth of the time of a CRC-32 of all bytes,
    which was half of the pause for a checkpoint.
    """
    if file.stat().st_size < _PAGE:
        return f"pages:{zlib.crc32(file.read_bytes()):08x}"
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        whole = len(content) // _PAGE * _PAGE
        sums = np.frombuffer(content, "<u8", whole // 8).reshape(-1, _PAGE // 8).sum(axis=1)
        return f"pages:{zlib.crc32(content[whole:], zlib.crc32(sums.astype('<u8').tobytes())):08x}"


def _crc32(file: Path) -> int:
    """Return the checksum of manifests of earlier versions."""
    checksum = 0
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
