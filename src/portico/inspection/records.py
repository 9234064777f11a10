"""The settings of a recording and what is recorded, as they pass between processes."""

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from portico.errors import InputError
from portico.trust.disk import open_new, remove_tree, write_text

VARIABLE = "PORTICO_RECORD"
"""A recorded process finds its settings in this environment variable."""
_RECORDS = "records"  # one file for each process that trained
_REDIRECTED = "redirected"  # one file for each output folder, which names the folder in its place
# Of the folder in place of an output folder, while a script is recorded; runs at the same time have one each.
SUFFIX = ".portico-verify"
AT_THE_SAME_TIME = "-portico"  # added to it for the second of two runs


@dataclass
class RecordSettings:
    library: str
    """``transformers``, or ``portico`` to replace it."""
    folder: str
    """Receives the records of all processes."""
    steps: int | None = None
    """Optimizer steps after which a training ends; by default as many as the script trains."""
    options: dict[str, Any] = field(default_factory=dict)
    """For ``portico.install``."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Training arguments to set, whatever the script says."""
    batch_divisor: int = 1
    """Divisor of the batch of each process, so that a step on more processes keeps its size."""
    finds_operators: bool = False
    """Whether to collect warnings of operators that are not deterministic."""
    suffix: str = SUFFIX
    """Of the folders in place of the script's output folders."""


@dataclass
class TrainingRecord:
    """What one trainer did; numbers are Python floats and hashes CRC-32 values."""

    initial_weights: int | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    """For each optimizer step: ``batches``, ``losses``, ``learning_rate``, ``gradients`` and ``weights`` (L2 norm by
    parameter), ``gradient_norm``, ``weights_hash``, and ``random`` states (``python``, ``numpy``, ``torch``)."""
    events: list[tuple[str, int]] = field(default_factory=list)
    """Callback events in order, each with the global step."""
    draws: dict[str, int] = field(default_factory=dict)
    """The callbacks of the script at whose event a random state changed: ``Class.event``, with the first step."""
    calls: dict[str, int] = field(default_factory=dict)
    """How often each method was called that a class outside the library overrides."""
    log_history: list[dict[str, Any]] = field(default_factory=list)
    final_weights: dict[str, int] = field(default_factory=dict)


@dataclass
class ScriptRecord:
    """What a process of a script did."""

    trainings: list[TrainingRecord] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    """Messages of the library on arguments without effect."""
    operators: list[str] = field(default_factory=list)
    """Operators that are not deterministic."""
    rank: int = 0
    begun: int = field(default_factory=time.time_ns)
    """When the process began, which orders those that a script starts one after the other."""

    def save(self, folder: Path) -> None:
        """Write the record of this process, unless it trained nothing, as a launcher of other processes does."""
        if self.trainings:
            name = f"{self.rank:06}-{self.begun}.json"
            write_text(folder / _RECORDS / name, json.dumps(asdict(self)))


def redirected(output_dir: str, settings: RecordSettings) -> str:
    """Return a folder next to the script's own, whose neighbours the script may read; the first process clears it.

    Raises:
        InputError: If something is there that cannot be removed: the script would write through a link to elsewhere,
            and what is left in a folder would be compared, and loaded, as written by the script.
    """
    replacing = f"{Path(output_dir).absolute()}{settings.suffix}"
    note = Path(settings.folder, _REDIRECTED, f"{zlib.crc32(replacing.encode()):08x}")
    note.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), open_new(note) as file:
        file.write(replacing)
        try:
            remove_tree(Path(replacing))
        except OSError as error:
            note.unlink()  # what is there is not the script's, and stays
            raise InputError(
                f"{replacing} cannot be removed ({error.strerror}), and `portico verify` writes there in place of "
                "`output_dir`; remove it, or set another `output_dir`."
            ) from error
    return replacing


def list_redirected_folders(folder: Path) -> list[Path]:
    """Return the folders in place of output folders, in the order of their first use."""
    notes = sorted((folder / _REDIRECTED).glob("*"), key=lambda note: note.stat().st_mtime_ns)
    return [Path(note.read_text(encoding="utf-8")) for note in notes]


def read_records(folder: Path) -> dict[str, Any]:
    """Return the record of a run, each step with the batches, losses and random states of all its processes."""
    whole: dict[str, Any] = {}
    by_rank: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((folder / _RECORDS).glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        del record["begun"], record["rank"]
        by_rank.setdefault(file.name.partition("-")[0], []).extend(record["trainings"])
        for name, entries in record.items():
            known = whole.setdefault(name, [])
            known += [entry for entry in entries if name != "trainings" and entry not in known]
    first, *others = by_rank.values() or [[]]
    for rank, trainings in enumerate(others, 1):
        for training, other in zip(first, trainings, strict=False):
            _add_process(rank, training["steps"], other["steps"])
    return whole | {"trainings": first} if whole else {}


def _add_process(rank: int, steps: Sequence[dict[str, Any]], others: Sequence[Mapping[str, Any]]) -> None:
    for step, other in zip(steps, others, strict=False):
        step["batches"] += other["batches"]
        step["losses"] += other["losses"]
        step["random"] |= {f"{name} of process {rank}": state for name, state in other["random"].items()}


def build_recording_environment(settings: RecordSettings) -> dict[str, str]:
    return {**os.environ, VARIABLE: json.dumps(asdict(settings))}


def adapt_arguments(args: Any, settings: RecordSettings) -> None:
    """Redirect the output of training arguments that are being made, and change what the settings say."""
    if not str(args.output_dir).endswith(settings.suffix):
        args.output_dir = redirected(str(args.output_dir), settings)
    for name, value in settings.arguments.items():
        setattr(args, name, value)
    by = settings.batch_divisor
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        if by > 1 and getattr(args, name) % by == 0 and not vars(args).get("_is_divided"):
            setattr(args, name, getattr(args, name) // by)
            vars(args)["_is_divided"] = True
