"""The manifest of a checkpoint lists every file with its size and checksum, and is written last.

A checkpoint without a manifest, as Hugging Face writes it, is not checked.
"""

import json
import mmap
import os
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from xxhash import xxh3_64

from portico.compat.transformers import logger
from portico.errors import InputError, InputRuntimeError

MANIFEST_FILE = "portico_manifest.json"
_CHECKSUMS = "xxh3:"
# What readers of JSON, pickles and safetensors raise for damaged content.
_DAMAGE = (
    EOFError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    pickle.UnpicklingError,
    SafetensorError,
)


def write_manifest(folder: Path) -> None:
    """List the files below ``folder`` in its manifest, which is on the disk when this returns."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    files = {path.relative_to(folder).as_posix(): [path.stat().st_size, _checksum(path)] for path in paths}
    with (folder / MANIFEST_FILE).open("w", encoding="utf-8") as file:
        json.dump(files, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def refresh_manifest(folder: Path) -> None:
    """Write the manifest again if files have changed since, for example in ``on_save`` of a callback."""
    manifest = folder / MANIFEST_FILE
    if not manifest.is_file():
        return
    listed, written = json.loads(manifest.read_text(encoding="utf-8")), manifest.stat().st_mtime_ns
    if any(not (folder / name).is_file() or (folder / name).stat().st_mtime_ns > written for name in listed):
        write_manifest(folder)


def damage(folder: Path) -> str | None:
    """Return what is wrong with the first damaged file of a checkpoint, or ``None``."""
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
            if not str(checksum).startswith(_CHECKSUMS):
                return f"{MANIFEST_FILE} is of another version of portico; delete it to use the files as they are"
            if checksum != _checksum(file):
                return f"{name} has changed since it was written (its checksum differs)"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST_FILE} cannot be read ({str(error)[:200]})"
    return None


def steps_of_checkpoints(run_folder: Path) -> dict[Path, int]:
    """Return the step N of each folder ``checkpoint-N``."""
    numbered = {path: re.fullmatch(r"checkpoint-(\d{1,18})", path.name) for path in run_folder.glob("checkpoint-*")}
    return {path: int(match[1]) for path, match in numbered.items() if match and path.is_dir()}


def newest_complete(run_folder: Path, *, but: Path | None = None, up_to: int | None = None) -> Path | None:
    """Return the undamaged ``checkpoint-N`` with the highest N up to ``up_to``; warn about damaged checkpoints."""
    found = steps_of_checkpoints(run_folder).items()
    steps = {path: step for path, step in found if path != but and (up_to is None or step <= up_to)}
    for checkpoint in sorted(steps, key=lambda path: steps[path], reverse=True):
        wrong = damage(checkpoint)
        if wrong is None:
            return checkpoint
        logger.warning("The checkpoint %s is damaged and passed over: %s.", checkpoint, wrong)
    return None


def refuse_damaged(folder: Path) -> None:
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


def _checksum(file: Path) -> str:
    # XXH3 finds every kind of damage with a probability of 1 - 2**-64, in a fifth of the time of a CRC-32. It need not
    # be cryptographic: whoever can change a file can change the manifest too.
    if file.stat().st_size == 0:  # which cannot be mapped
        return f"{_CHECKSUMS}{xxh3_64(b'').hexdigest()}"
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return f"{_CHECKSUMS}{xxh3_64(content).hexdigest()}"
