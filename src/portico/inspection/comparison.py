"""Compare what two runs of a script recorded: the first difference, what is equal, and the likeliest cause."""

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portico.checkpoint.manifest import OWN_FILES
from portico.inspection.recorder import hash_of
from portico.inspection.records import AT_THE_SAME_TIME, SUFFIX
from portico.trust.files import load_own

# What two runs of the same program never share.
_TIMES = ("runtime", "per_second", "mem_", "_time")
_UNCOMPARED_FILES = (*OWN_FILES, "stream_position", "training_args.bin", "README.md", "events.out.tfevents")
# The quantities of a step in the order in which they are computed.
QUANTITIES = {
    "batches": "batch",
    "losses": "loss",
    "gradient_norm": "gradient norm",
    "gradients": "gradients",
    "learning_rate": "learning rate",
    "weights_hash": "weights",
    "random": "random states",
}


_ERROR = re.compile(
    r"(\[rank\d+\]: ?)?((error|portico\.errors\.\w+): (?P<refusal>.+)|([\w.]+\.)?(?P<kind>\w*(Error|Exception)): .+)"
)
_ERRORS_OF_A_PROGRAM = (
    "AssertionError",
    "AttributeError",
    "ImportError",
    "IndexError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "TypeError",
    "ValueError",
)


@dataclass(frozen=True)
class RunDifference:
    quantity: str
    """One of the values of ``QUANTITIES``, or "initial weights", "log history", "events", "file ..." and others."""
    step: int
    """The optimizer step, 0 before the first."""
    values: tuple[object, object]
    tensor: str = ""
    """The parameter that differs most, with the norm on each side."""

    def __str__(self) -> str:
        where = f" at step {self.step}" if self.step else " before the first step"
        if self.quantity.startswith(("file ", "number of trainers")):
            where = ""
        largest = f"; largest in {self.tensor}" if self.tensor else ""
        return f"{self.quantity}{where}: {self.values[0]} and {self.values[1]}{largest}"


@dataclass
class RecordedRun:
    """A run of a script, with its record and the files it wrote."""

    label: str
    folder: Path
    exit_code: int
    log: str
    trainings: list[dict[str, Any]] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)

    @property
    def error(self) -> str:
        """The last line of the traceback; a launcher of processes writes more below it."""
        lines = [line for line in self.log.splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]
        return (errors or lines or [f"exit code {self.exit_code}"])[-1]

    @property
    def refusal(self) -> str:
        """The sentence with which portico refused the script, empty if it did not."""
        found = _ERROR.match(self.error) if self.exit_code else None
        return found["refusal"] or "" if found else ""

    @property
    def fails_anywhere(self) -> bool:
        """Whether the error is one of the program, which no other run beside it can have caused."""
        found = _ERROR.match(self.error) if self.exit_code else None
        return found is not None and (bool(found["refusal"]) or found["kind"] in _ERRORS_OF_A_PROGRAM)

    def losses(self) -> list[tuple[float, float]]:
        """Return the mean loss of each step of all trainings, by its number."""
        steps = [step for training in self.trainings for step in training["steps"]]
        return [(number, sum(s["losses"]) / max(1, len(s["losses"]))) for number, s in enumerate(steps, 1)]

    def logged_losses(self) -> dict[float, float]:
        """Return the logged losses by step, each a mean over all processes."""
        return {
            row["step"]: row["loss"] for training in self.trainings for row in training["log_history"] if "loss" in row
        }


def first_difference(first: RecordedRun, second: RecordedRun, *, but: Collection[str] = ()) -> RunDifference | None:
    """Return the first difference in the order of the program, ``but`` for some quantities; None if there is none."""
    return next((difference for difference in _differences(first, second) if difference.quantity not in but), None)


def irreproducible(first: RecordedRun, again: RecordedRun) -> dict[str, RunDifference]:
    """Return the quantities in which two runs under one library differ, each with its first difference, in order."""
    found: dict[str, RunDifference] = {}
    for difference in _differences(first, again):
        found.setdefault(difference.quantity, difference)
    return found


def _concerns_training(quantities: Collection[str]) -> bool:
    """Return whether the quantities include anything but logs, events and files."""
    return any(not quantity.startswith(("file ", "log history", "events")) for quantity in quantities)


def reproducible_difference(first: RecordedRun, second: RecordedRun, again: RecordedRun) -> RunDifference | None:
    """Return the first difference in a quantity that transformers itself reproduces; None if there is none.

    The second run under transformers is the one to compare with: like the run under portico it found what the first
    one left, such as a cache of the data.
    """
    changing = irreproducible(first, again)
    difference = first_difference(again, second)
    if difference is not None and not _concerns_training(changing):
        difference = first_difference(again, second, but=changing)
    return difference


def _differences(first: RecordedRun, second: RecordedRun) -> Iterator[RunDifference]:
    for training, other in zip(first.trainings, second.trainings, strict=False):
        if training["initial_weights"] != other["initial_weights"]:
            yield RunDifference(
                "initial weights", 0, (_hex(training["initial_weights"]), _hex(other["initial_weights"]))
            )
        for mine, theirs in zip(training["steps"], other["steps"], strict=False):
            for key, name in QUANTITIES.items():
                if not _equal(mine[key], theirs[key]):
                    yield RunDifference(name, mine["step"], _show_values(key, mine, theirs), _largest(mine, theirs))
        if len(training["steps"]) != len(other["steps"]):
            yield RunDifference(
                "number of steps", len(training["steps"]), (len(training["steps"]), len(other["steps"]))
            )
        yield from _compare_lists(
            "log history", map(drop_times, training["log_history"]), map(drop_times, other["log_history"])
        )
        yield from _compare_lists("events", training["events"], other["events"])
        for name, value in training["final_weights"].items():
            if other["final_weights"].get(name) != value:
                step = len(training["steps"])
                yield RunDifference("final weights", step, (_hex(value), _hex(other["final_weights"].get(name))), name)
    if len(first.trainings) != len(second.trainings):
        yield RunDifference("number of trainers", 0, (len(first.trainings), len(second.trainings)))
    yield from _compare_files(first.folder / "output", second.folder / "output")


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return bool(one == other)


def _show_values(key: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[object, object]:
    one, other = mine[key], theirs[key]
    if key == "random":
        changed = [name for name in one if one[name] != other.get(name)]
        shown = [", ".join(f"{name} {_hex(each[name])}" for name in changed) for each in (one, other)]
        return shown[0], shown[1]
    if key == "gradients":
        return mine["gradient_norm"], theirs["gradient_norm"]
    if key in ("batches", "weights_hash"):
        return _hex(one), _hex(other)
    values = [value[0] if isinstance(value, list) and len(value) == 1 else value for value in (one, other)]
    return values[0], values[1]


def _hex(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_hex, value))
    return f"{value:08x}" if isinstance(value, int) else str(value)


def _largest(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return the parameter whose gradient, or else whose weight, differs most in norm."""
    for key in ("gradients", "weights"):
        gaps = {
            name: abs(norm - theirs[key][name]) / (abs(norm) + 1e-30)
            for name, norm in mine[key].items()
            if name in theirs[key] and not _equal(norm, theirs[key][name])
        }
        if gaps:
            name = max(gaps, key=lambda each: gaps[each] if gaps[each] == gaps[each] else math.inf)
            return f"{name} ({key[:-1]} norm {mine[key][name]:.9g} and {theirs[key][name]:.9g})"
    return ""


def _compare_lists(quantity: str, first: Iterable[object], second: Iterable[object]) -> Iterator[RunDifference]:
    one, other = list(first), list(second)

    def step(entry: Any) -> int:
        return int(entry.get("step", 0) if isinstance(entry, Mapping) else entry[1])

    for mine, theirs in zip(one, other, strict=False):
        if not _equal(mine, theirs):
            yield RunDifference(quantity, step(mine), (mine, theirs))
            return
    if len(one) != len(other):
        more = max(one, other, key=len)[min(len(one), len(other))]
        yield RunDifference(quantity, step(more), (f"{len(one)} entries", f"{len(other)}, the next being {more}"))


def drop_times(value: object) -> Any:
    """Return nested values without times and memory."""
    if isinstance(value, Mapping):
        return {key: drop_times(item) for key, item in value.items() if not any(mark in key for mark in _TIMES)}
    return [drop_times(item) for item in value] if isinstance(value, list) else value


def list_shared_files(folder: Path) -> dict[str, Path]:
    """Return the files of an output folder that two identical runs share, by relative path."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if not any(mark in name for mark in _UNCOMPARED_FILES)}


def _compare_files(first: Path, second: Path) -> Iterator[RunDifference]:
    one, other = list_shared_files(first), list_shared_files(second)
    for name in one.keys() ^ other.keys():
        here = ("written", "missing")
        yield RunDifference(f"file {name}", 0, here if name in one else (here[1], here[0]))
    for name in sorted(one.keys() & other.keys()):
        if _bytes(one[name]) != _bytes(other[name]) and _content(one[name]) != _content(other[name]):
            yield RunDifference(f"file {name}", 0, ("its content", "another"))


def _bytes(path: Path) -> bytes:
    """Return what a file holds; names of output folders in it are the same for runs that had one each."""
    return path.read_bytes().replace(f"{SUFFIX}{AT_THE_SAME_TIME}".encode(), SUFFIX.encode())


def _content(path: Path) -> Any:
    if path.suffix in (".pt", ".pth"):
        # The recorded process wrote it.
        return hash_of(load_own(path, map_location="cpu"))
    if path.suffix == ".json":
        return drop_times(json.loads(_bytes(path)))
    return _bytes(path)


def likely_causes(
    difference: RunDifference, first: RecordedRun, second: RecordedRun, again: RecordedRun | None
) -> list[str]:
    """Return sentences on what probably makes the difference, the likeliest first.

    ``again`` is a second run under the first library: what it does not reproduce, the other library cannot either.
    """
    if again is not None:
        found = irreproducible(first, again)
        if _concerns_training(found) or difference.quantity in found:
            return [_explain_by_script(next(iter(found.values())), first, again)]
    uncalled = _find_uncalled(first, second)
    causes = [f"{name} is called {count} times under {first.label} and never here" for name, count in uncalled.items()]
    if difference.quantity == "random states":
        causes += _find_drawing_callbacks(first, second)
    causes += [
        f"an argument without effect: {message}" for message in second.announced if message not in first.announced
    ]
    if not causes and difference.quantity in ("loss", "gradient norm", "gradients"):
        causes.append("the model, its loss or its inputs depend on the library: the batch is the same, the result not")
    return causes or ["none that is known: each library gives the same numbers again"]


def _explain_by_script(difference: RunDifference, first: RecordedRun, again: RecordedRun) -> str:
    """Return what makes a script irreproducible, from its first difference between two runs of one library."""
    start = f"the script is not reproducible: two runs under {first.label} differ, first in the {difference}"
    drawing = _find_drawing_callbacks(first, again)
    if difference.quantity == "initial weights":
        why = "the model is made before the seed is set, or from a seed of its own; call `set_seed` first"
    elif difference.quantity == "batch":
        why = "the data or its order are not seeded, such as a shuffle without a seed or an iteration over a set"
    elif drawing:
        why = drawing[0]
    elif difference.quantity in ("loss", "gradient norm", "gradients", "weights"):
        found = f" (torch names {', '.join(again.operators)})" if again.operators else ""
        why = f"an operator is not deterministic{found}: weights, batch and random states were the same"
    else:
        why = "something outside the training, such as the time or a file"
    return f"{start}; likeliest cause: {why}"


def _find_drawing_callbacks(*runs: RecordedRun) -> list[str]:
    found = {name: step for run in runs for training in run.trainings for name, step in training["draws"].items()}
    return [f"the callback {name} draws random numbers, first at step {step}" for name, step in found.items()]


def _find_uncalled(first: RecordedRun, second: RecordedRun) -> dict[str, int]:
    found = {}
    for training, other in zip(first.trainings, second.trainings, strict=False):
        found.update(
            {name: count for name, count in training["calls"].items() if count and not other["calls"].get(name)}
        )
    return found


# ---- With a tolerance ----


@dataclass(frozen=True)
class Growth:
    """Relative differences of logged losses, by step, and the largest one of gradient norms."""

    tolerance: float
    by_step: Sequence[tuple[float, float]]

    @property
    def beyond(self) -> tuple[float, float] | None:
        """The first step beyond the tolerance, with its difference."""
        return next((step for step in self.by_step if not step[1] <= self.tolerance), None)

    @property
    def quarters(self) -> list[tuple[str, float]]:
        """The largest difference in each quarter of the run."""
        size = max(1, math.ceil(len(self.by_step) / 4))
        parts = [self.by_step[start : start + size] for start in range(0, len(self.by_step), size)]
        return [(f"{part[0][0]:g} to {part[-1][0]:g}", max(gap for _, gap in part)) for part in parts]


def loss_growth(first: RecordedRun, second: RecordedRun, tolerance: float) -> Growth:
    one, other = first.logged_losses(), second.logged_losses()
    gaps = [(step, abs(loss - other[step]) / max(abs(loss), 1e-12)) for step, loss in one.items() if step in other]
    return Growth(tolerance, gaps)
