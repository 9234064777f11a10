"""The settings of a recording and what is recorded, as they pass between processes."""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "PORTICO_RECORD"
"""A recorded process finds its settings in this environment variable."""
RECORD_FILE = "record.json"
# Of the folder in place of an output folder, while a script is recorded; runs at the same time have one each.
SUFFIX = ".portico-verify"
AT_THE_SAME_TIME = "-portico"  # added to it for the second of two runs


@dataclass
class RecordSettings:
    """What to record."""

    library: str
    """``transformers``, or ``portico`` to replace it."""
    folder: str
    """Receives ``record.json``."""
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
    """What a script did: the contents of ``record.json``."""

    trainings: list[TrainingRecord] = field(default_factory=list)
    folders: dict[str, str] = field(default_factory=dict)
    """The folders written to, by the output folder of the script that each replaces."""
    announced: list[str] = field(default_factory=list)
    """Messages of the library on arguments without effect."""
    operators: list[str] = field(default_factory=list)
    """Operators that are not deterministic."""

    def redirected(self, output_dir: str, suffix: str) -> str:
        """Return a folder next to the script's own, whose neighbours the script may read."""
        if output_dir not in self.folders:
            self.folders[output_dir] = f"{Path(output_dir).absolute()}{suffix}"
            if "LOCAL_RANK" not in os.environ:
                shutil.rmtree(self.folders[output_dir], ignore_errors=True)
        return self.folders[output_dir]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        content = asdict(self) | {"folders": list(self.folders.values())}
        (folder / RECORD_FILE).write_text(json.dumps(content), encoding="utf-8")


def recording_environment(settings: RecordSettings) -> dict[str, str]:
    return {**os.environ, VARIABLE: json.dumps(asdict(settings))}


def adapt_arguments(args: Any, settings: RecordSettings, record: ScriptRecord) -> None:
    """Redirect the output of training arguments that are being made, and change what the settings say."""
    if not str(args.output_dir).endswith(settings.suffix):
        args.output_dir = record.redirected(str(args.output_dir), settings.suffix)
    for name, value in settings.arguments.items():
        setattr(args, name, value)
    by = settings.batch_divisor
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        if by > 1 and getattr(args, name) % by == 0 and not vars(args).get("_is_divided"):
            setattr(args, name, getattr(args, name) // by)
            vars(args)["_is_divided"] = True
