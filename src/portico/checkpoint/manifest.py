"""The manifest of a checkpoint lists every file with its size and checksum, and is written last.

A checkpoint without a manifest, as Hugging Face writes it, is not checked.
"""

import json
import mmap
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError, safe_open
from transformers import WEIGHTS_NAME
from xxhash import xxh3_64

from portico.compat.transformers import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    logger,
)
from portico.errors import (
    InputError,
    InputFileNotFoundError,
    InputPermissionError,
    InputRuntimeError,
    printable,
    reason_of,
)
from portico.trust.disk import open_new, read_bytes, read_text, refuse_huge, replaced
from portico.trust.files import UnpicklingError, refuse_oversized

MANIFEST_FILE = "portico_manifest.json"
POSITION_FILE = "portico_position.json"
EPOCH_START_FILE = "portico_epoch_start.pth"
LIGHTNING_FILE = "lightning_states.pt"
# The files of a checkpoint that transformers does not write.
OWN_FILES = (MANIFEST_FILE, POSITION_FILE, EPOCH_START_FILE, LIGHTNING_FILE)
STATE_FILE = "trainer_state.json"
_NOT_NEWER = ", although it is not newer than the manifest"
_NO_STATE = f"{STATE_FILE} is missing"
_WEIGHTS = re.compile(r"(adapter_model|(pytorch_)?model(-\d+-of-\d+)?)\.(safetensors|bin)(\.index\.json)?")
_STATES = ("optimizer.pt", "scheduler.pt", "scaler.pt", LIGHTNING_FILE)
_CHECKSUMS = "xxh3:"
_COARSEST_TIME = 2_000_000_000  # nanoseconds: of FAT and zip archives
_LONGEST_HEADER = 100_000_000  # bytes: safetensors refuses longer ones
_MOST_LAYERS = 1_000
_MOST_LABELS = 1_000_000
# What readers of JSON, pickles and safetensors raise for damaged content, of which a length may be a huge number.
DAMAGE = (
    MemoryError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    UnpicklingError,
    SafetensorError,
)


def write_manifest(folder: Path) -> None:
    """List the files below ``folder`` in its manifest, which is on the disk when this returns."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    files = {path.relative_to(folder).as_posix(): Listed.of(path).as_list() for path in paths}
    with replaced(folder / MANIFEST_FILE) as staging, open_new(staging) as file:
        json.dump(files, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def refresh_manifest(folder: Path) -> None:
    """Write the manifest again if files have changed since, for example in ``on_save`` of a callback."""
    manifest = folder / MANIFEST_FILE
    if not manifest.is_file():
        return
    listed, written = json.loads(read_text(manifest)), manifest.stat().st_mtime_ns
    if any(not (folder / name).is_file() or (folder / name).stat().st_mtime_ns > written for name in listed):
        write_manifest(folder)


@dataclass(frozen=True)
class Listed:
    """What a manifest says of a file."""

    size: int
    checksum: str
    time: int | None = None
    """When it was written, in nanoseconds; None in a manifest of an earlier release."""
    header: str | None = None
    """Checksum of the header of weights in safetensors: names, shapes, dtypes and metadata."""

    @classmethod
    def of(cls, file: Path) -> Self:
        status = file.stat()
        return cls(status.st_size, _checksum(file), status.st_mtime_ns, _header_checksum(file))

    def as_list(self) -> list[int | str | None]:
        """Return the values as they are in the file."""
        return [value for value in (self.size, self.checksum, self.time, self.header) if value is not None]

    def has_another_time(self, file: Path) -> bool:
        """Return whether the time was lost in a copy: archives keep it to two seconds."""
        return self.time is not None and abs(file.stat().st_mtime_ns - self.time) > _COARSEST_TIME


@dataclass(frozen=True)
class Examination:
    """What was found in a checkpoint: files that were changed on purpose, and what is wrong with a damaged one."""

    changes: list[str] = field(default_factory=list)
    damage: str | None = None


def examine(folder: Path) -> Examination:
    """Compare the files of a checkpoint with its manifest, and tell changes on purpose from damage.

    ==========================================================================  ==================
    a file that                                                                 is
    ==========================================================================  ==================
    has the listed size and checksum                                            unchanged
    differs, was written after the manifest and reads well                      changed on purpose
    differs, and is as old as the manifest or cannot be read                    damaged
    differs, holds the same tensors, and all times are those of a copy          damaged
    holds weights, is not listed, was written after the manifest, reads well    changed on purpose
    holds weights, is not listed, and is as old or cannot be read               damaged
    holds the optimizer or the schedule, is not listed, and is as old           damaged
    held weights and is gone, but its folder has weights in another form        changed on purpose
    held weights and is gone, and there are no others                           damaged
    is gone from a sub-folder that has other files, such as shards              damaged
    is ``trainer_state.json`` and is gone, so that the step is unknown          damaged
    is gone, and held another part of the run, which starts afresh              changed on purpose
    ==========================================================================  ==================

    A file reads well if it is complete as safetensors, JSON or an archive of torch, or is text. Weights have no
    checksum inside, so one that was changed in a copy reads as well as one that a library has saved with other values:
    the time tells them apart, unless the copy has set the times of all files. A checkpoint without a manifest is only
    required to have ``trainer_state.json``.

    Raises:
        InputError: If a file may not be read.
    """
    changes: list[str] = []
    manifest = folder / MANIFEST_FILE
    try:
        listed = json.loads(read_bytes(manifest)) if manifest.is_file() else {}
        if manifest.is_file() and (wrong := _find_fault(listed)):
            return Examination(damage=f"{MANIFEST_FILE} {wrong}")
        known = {name: Listed(*entry) for name, entry in listed.items()}
        differing: dict[str, str] = {}
        for name, entry in known.items():
            if not (folder / name).is_file():
                if _is_needed(folder, name):
                    return Examination(damage=f"{name} is missing")
                changes.append(f"{name} is gone")
            elif wrong := _find_difference(folder / name, entry):
                differing[name] = wrong
        for name, wrong in differing.items():
            if objection := _find_objection(folder / name, manifest):
                return Examination(damage=f"{name} {wrong}{objection}")
            holds_the_same = known[name].header is not None and _header_checksum(folder / name) == known[name].header
            if holds_the_same and (copied := _find_copy_without_time(folder, known, set(differing))):
                return Examination(
                    damage=f"{name} {wrong}, although it holds the same tensors, and the folder was copied since "
                    f"({copied} is unchanged and has another time)"
                )
            same = ", in the same tensors" if holds_the_same else ""
            changes.append(f"{name} was written again (its content differs from what the run wrote{same})")
        for name in _STATES if listed else ():
            if name not in listed and (folder / name).is_file() and not _is_newer(folder / name, manifest):
                return Examination(damage=f"{name} is not listed in {MANIFEST_FILE}{_NOT_NEWER}")
        for file in weight_files(folder) if listed else []:
            if file.name not in listed:
                if objection := _find_objection(file, manifest):
                    return Examination(damage=f"{file.name} is not listed in {MANIFEST_FILE}{objection}")
                changes.append(f"{file.name} was added")
    except PermissionError as error:
        raise unreadable(error) from error
    except InputError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return Examination(damage=f"{MANIFEST_FILE} cannot be read ({str(error)[:200]})")
    return Examination(changes, None if (folder / STATE_FILE).is_file() else _NO_STATE)


def weight_files(folder: Path) -> list[Path]:
    """Return the files in ``folder`` itself that weights are read from; none unless they are complete."""
    for name in (SAFE_WEIGHTS_NAME, WEIGHTS_NAME):
        if (folder / name).is_file():
            return [folder / name]
    for name in (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME):
        if (folder / name).is_file():
            try:
                shards = list_shards(folder / name)
            except InputError:
                raise
            except DAMAGE:
                continue
            return [folder / name, *shards] if all(map(Path.is_file, shards)) else []
    adapters = [folder / name for name in (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME)]
    return [file for file in adapters if file.is_file()]


def list_shards(index: Path) -> list[Path]:
    """Return the files that an index of weights lists, sorted by name; a damaged index raises one of `DAMAGE`.

    Raises:
        InputError: If a file is not next to the index.
    """
    names = sorted(set(json.loads(read_bytes(index))["weight_map"].values()))
    for name in names:
        if Path(name).name != name:
            raise InputError(f"{index} lists {printable(name[:100])!r}, which is not next to it; restore the file.")
    return [index.with_name(name) for name in names]


def refuse_oversized_model(name_or_path: str) -> None:
    """Refuse a folder whose small files would fill the memory when ``from_pretrained`` reads them.

    Raises:
        UnpicklingError: If a pickle of its weights would.
        InputError: If its configuration asks for more layers or labels than any model has, or a file is a pipe.
    """
    for file in Path(name_or_path).glob("*"):  # none for a name of the hub
        if file.is_fifo():
            raise InputError(f"{file}: is a pipe, from which reading would never end; restore the file.")
        if file.suffix in (".json", ".txt", ".model") and file.is_file():
            refuse_huge(file)
    config = Path(name_or_path, "config.json")
    settings: Any = None
    with suppress(*DAMAGE, RecursionError):  # which ``from_pretrained`` explains
        settings = json.loads(read_bytes(config))
    for name, value in settings.items() if isinstance(settings, dict) else ():
        most = _MOST_LABELS if name == "num_labels" else _MOST_LAYERS
        is_count = name == "num_labels" or name.endswith(("layer", "layers"))
        if is_count and isinstance(value, int | float) and value > most:
            raise InputError(f"{config}: `{printable(name)}` is more than {most:,}; restore the file.")
    _refuse_names_elsewhere(Path(name_or_path))
    for file in weight_files(Path(name_or_path)):
        if file.suffix not in (".safetensors", ".json"):
            with file.open("rb") as opened:
                refuse_oversized(opened)


def _refuse_names_elsewhere(folder: Path) -> None:
    """Raise ``InputError`` if files of a model name weights or tokenizers that are not below their folder."""
    for file, key in (("config.json", "transformers_weights"), ("tokenizer_config.json", "fast_tokenizer_files")):
        settings: Any = None
        with suppress(*DAMAGE, RecursionError):  # which ``from_pretrained`` explains
            settings = json.loads(read_bytes(folder / file))
        value = settings.get(key) if isinstance(settings, dict) else None
        for name in value if isinstance(value, list) else [value]:
            if isinstance(name, str) and not _is_below(name):
                raise InputError(
                    f"{folder / file}: `{key}` names {printable(name[:100])!r}, which is not below it; restore it."
                )
            if isinstance(name, str) and name.endswith(".index.json"):
                _refuse_shards_elsewhere(folder / name)


def _refuse_shards_elsewhere(index: Path) -> None:
    try:
        list_shards(index)
    except InputError:
        raise
    except DAMAGE:  # which ``from_pretrained`` explains
        pass


def _is_below(name: str) -> bool:
    """Return whether a path in a file stays below the folder of the file."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _find_fault(listed: dict[str, tuple[int, str]]) -> str | None:
    """Return what is wrong with the content of a manifest."""
    for name, (_, checksum, *_) in listed.items():
        if not _is_below(name):
            return f"lists {name[:100]!r}, which is outside the folder"
        if not str(checksum).startswith(_CHECKSUMS):
            return "is of another version of portico; delete it to use the files as they are"
    return None if STATE_FILE in listed else f"does not list {STATE_FILE}, which every checkpoint has"


def _is_needed(folder: Path, name: str) -> bool:
    """Return whether a run cannot be resumed without the file ``name``, which is gone."""
    place = (folder / name).parent
    if _WEIGHTS.fullmatch(Path(name).name):
        # Merged adapters leave the weights of the whole model.
        of_model = [file for file in weight_files(folder) if not file.name.startswith("adapter_")]
        return not (weight_files(place) or (of_model and Path(name).name.startswith("adapter_")))
    return name == STATE_FILE or (place != folder and place.is_dir() and any(place.iterdir()))


def _find_difference(file: Path, entry: Listed) -> str | None:
    if file.stat().st_size != entry.size:
        return f"has {file.stat().st_size} bytes instead of {entry.size}"
    return None if entry.checksum == _checksum(file) else "has changed since it was written (its checksum differs)"


def _find_copy_without_time(folder: Path, known: dict[str, Listed], differing: set[str]) -> str | None:
    """Return a file that shows that the folder was copied and the times of its files were lost, if one does.

    Nothing but a run writes the state of a run, so where one is unchanged and has another time, all times are those of
    the copy. Libraries that save a model may write its configuration and its tokenizer again as they were.
    """
    for name, entry in known.items():
        is_state = name in _STATES or name in (STATE_FILE, POSITION_FILE) or name.startswith("rng_state")
        if is_state and name not in differing and (folder / name).is_file() and entry.has_another_time(folder / name):
            return name
    return None


def _is_newer(file: Path, manifest: Path) -> bool:
    return file.stat().st_mtime_ns > manifest.stat().st_mtime_ns


def _find_objection(file: Path, manifest: Path) -> str | None:
    """Return why ``file`` has not been changed on purpose, as the end of a sentence."""
    if not _is_newer(file, manifest):
        return _NOT_NEWER
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt"):
                pass
        elif file.suffix == ".json":
            json.loads(read_bytes(file))
        elif file.suffix in (".bin", ".pt", ".pth"):
            with ZipFile(file) as archive:
                if (part := archive.testzip()) is not None:
                    raise BadZipFile(f"the checksum of {part} differs")
        else:
            read_text(file)
    except PermissionError:
        raise
    except (*DAMAGE, BadZipFile, NotImplementedError, RuntimeError) as error:
        return f" and cannot be read ({str(error)[:200]})"
    return None


def has_file(folder: Path, name: str) -> bool:
    """Return whether a checkpoint has a file: one that its manifest lists, or weights that were saved again."""
    if not (folder / name).is_file():
        return False
    manifest = folder / MANIFEST_FILE
    if not manifest.is_file() or _WEIGHTS.fullmatch(Path(name).name):
        return True
    return name in json.loads(read_bytes(manifest))


def steps_of_checkpoints(run_folder: Path) -> dict[Path, int]:
    """Return the step N of each folder ``checkpoint-N``."""
    numbered = {path: re.fullmatch(r"checkpoint-(\d{1,18})", path.name) for path in run_folder.glob("checkpoint-*")}
    return {path: int(match[1]) for path, match in numbered.items() if match and path.is_dir()}


def newest_complete(run_folder: Path, *, excluding: Path | None = None, up_to: int | None = None) -> Path | None:
    """Return the undamaged ``checkpoint-N`` with the highest N up to ``up_to``; warn about damaged checkpoints."""
    numbered = steps_of_checkpoints(run_folder).items()
    steps = {path: step for path, step in numbered if path != excluding and (up_to is None or step <= up_to)}
    for checkpoint in sorted(steps, key=lambda path: steps[path], reverse=True):
        found = examine(checkpoint)
        if found.damage is None:
            _announce(checkpoint, found.changes)
            return checkpoint
        logger.warning("The checkpoint %s is damaged, so it is skipped: %s.", checkpoint, found.damage)
    return None


def refuse_damaged(folder: Path) -> None:
    """Raise ``InputError`` if the checkpoint in ``folder`` is damaged; announce what was changed on purpose."""
    found = examine(folder)
    if found.damage == _NO_STATE and not (folder / MANIFEST_FILE).is_file() and not weight_files(folder):
        return  # no checkpoint, or one in a format of the user's own, which loading the weights will tell
    if found.damage == _NO_STATE:
        raise InputFileNotFoundError(
            f"{folder} has no {STATE_FILE}, so the step at which it was saved is unknown; to train on from the first "
            "step, load its weights with `from_pretrained`, and leave `resume_from_checkpoint` out. "
            f"{_suggest_other(folder)}"
        )
    if found.damage is not None:
        raise InputError(
            f"The checkpoint {folder} is damaged: {printable(found.damage)}. {_suggest_other(folder)} If the file "
            f"was changed on purpose, delete {folder / MANIFEST_FILE}."
        )
    _announce(folder, found.changes)


def _announce(folder: Path, changes: list[str]) -> None:
    if changes:
        logger.warning(
            "The checkpoint %s was changed after it was written: %s. It is used as it is; a damaged copy looks the "
            "same, so copy it again if nobody changed it.",
            folder,
            ", ".join(changes),
        )


@contextmanager
def reading(file: Path, *, into_model: bool = False) -> Iterator[None]:
    """Turn the errors of a damaged or truncated file into ``InputError``, which names the file.

    ``torch.load`` raises ``RuntimeError`` for damage, ``into_model`` for weights that do not fit the model.
    """
    errors = DAMAGE if into_model else (*DAMAGE, RuntimeError)
    try:
        yield
    except InputError:
        raise
    except PermissionError as error:
        raise unreadable(error) from error
    except errors as error:
        reason = reason_of(error).split(". ")[0].rstrip(".")
        raise InputError(printable(f"{file} cannot be read: {reason}. {_suggest_other(file.parent)}")) from error


def unreadable(error: PermissionError) -> InputPermissionError:
    """Return the error for a file that this user may not read, which says nothing about what is in it."""
    return InputPermissionError(
        f"{error.filename or 'A file'} may not be read by this user ({error.strerror}); ask its owner for permission "
        "(`chmod a+rX` on the folder), or run the command as its owner."
    )


def refuse_unreadable(folder: Path) -> None:
    """Raise the error for the first file of a model in ``folder`` that this user may not read, if there is one."""
    for file in [*sorted(folder.glob("*.json")), *weight_files(folder)]:
        try:
            file.open("rb").close()
        except PermissionError as error:
            raise unreadable(error) from error


def build_mismatch_error(path: Path, part: str, model: object, what: str) -> InputRuntimeError:
    """Return the error for weights or an optimizer in ``path`` that do not fit ``model``; ``what`` says which."""
    return InputRuntimeError(
        f"{path} holds the {part} of another model than {type(model).__name__}: {printable(what)}; set "
        "`resume_from_checkpoint` to a checkpoint of this model, or leave it out."
    )


def _suggest_other(folder: Path) -> str:
    complete = newest_complete(folder.parent, excluding=folder)
    if complete is None:
        return f"{folder.parent} holds no other complete checkpoint; train from the start."
    return f"Set `resume_from_checkpoint={str(complete)!r}`, the newest complete checkpoint of the run."


def _header_checksum(file: Path) -> str | None:
    """Return the checksum of the header of a file in safetensors; None for other and for damaged files."""
    if file.suffix != ".safetensors":
        return None
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        return f"{_CHECKSUMS}{xxh3_64(opened.read(length)).hexdigest()}" if length <= _LONGEST_HEADER else None


def _checksum(file: Path) -> str:
    # XXH3 finds every kind of damage with a probability of 1 - 2**-64, in a fifth of the time of a CRC-32. It need not
    # be cryptographic: whoever can change a file can change the manifest too.
    if file.stat().st_size == 0:  # which cannot be mapped
        return f"{_CHECKSUMS}{xxh3_64(b'').hexdigest()}"
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return f"{_CHECKSUMS}{xxh3_64(content).hexdigest()}"
