"""What a rehearsal finds, as it passes between processes: stages, faults, and what a real run would take."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from portico.trust.disk import read_text, write_text

PASSED, FAILED, SKIPPED = "passed", "failed", "not tried"
REHEARSED, RESUMED = "rehearsed", "resumed"  # kinds of records
_RECORDS = "records"


@dataclass
class Stage:
    """One part of a training, rehearsed."""

    name: str
    result: str = PASSED
    seconds: float = 0.0
    memory: int = 0
    """Peak of the memory in use, in bytes: of the device if there is one, else of the process."""
    note: str = ""


@dataclass
class Fault:
    """What would end a real run, or spoil it."""

    stage: str
    sentence: str
    """The cause, then the cure."""


@dataclass
class Repeated:
    """A part of a run that is repeated: evaluations of one set, or checkpoints."""

    name: str
    times: int
    seconds: float
    num_bytes: int = 0


@dataclass
class Forecast:
    """What one training would take."""

    num_steps: int = 0
    step_seconds: float = 0.0
    repeated: list[Repeated] = field(default_factory=list)
    output_dir: str = ""
    num_kept: int = 0
    """The most checkpoints that are on the disk at a time."""
    checkpoint_bytes: int = 0
    num_trials: int = 1
    """Of a search; each trains by itself, into its own folder."""

    @property
    def seconds(self) -> float:
        seconds = self.num_steps * self.step_seconds + sum(part.times * part.seconds for part in self.repeated)
        return self.num_trials * seconds

    @property
    def disk_bytes(self) -> int:
        return self.num_trials * self.num_kept * self.checkpoint_bytes


@dataclass
class Fingerprint:
    """A step, to be compared with the same step of a run that was resumed before it."""

    step: int
    batches: int
    """CRC-32 of the batches."""
    loss: float
    weights: int
    """CRC-32 of the weights after the step."""
    is_random: bool = False
    """Whether the data, or the arguments of a trial, are drawn at random when they are read."""


@dataclass
class Rehearsed:
    """What one process of a script found."""

    rank: int = 0
    begun: float = 0.0
    stages: list[Stage] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    forecasts: list[Forecast] = field(default_factory=list)
    startup_seconds: float = 0.0
    """From the start of the process to its first training."""
    other_seconds: float = 0.0
    """After the trainings, of a real run."""
    current: str = ""
    """The stage that was running when the record was written; it is still named if the process was killed in it."""
    device_memory: int = 0
    """What there is of the memory that stages measure."""
    checkpoint: str = ""
    """A copy of the first checkpoint, for the resume."""
    rows: list[int] | None = None
    """The examples of the rehearsed epoch."""
    max_steps: int = 0
    fingerprint: Fingerprint | None = None
    is_complete: bool = False

    def add_fault(self, stage: str, sentence: str) -> None:
        if all(fault.sentence != sentence for fault in self.faults):
            self.faults.append(Fault(stage, sentence))

    @property
    def resumes(self) -> dict[str, Any]:
        """What a process that resumes this training is told: its checkpoint, rows and steps."""
        return {"checkpoint": self.checkpoint, "rows": self.rows, "max_steps": self.max_steps}

    def add_resume(self, tried: Sequence["Rehearsed"], ending: str, seconds: float) -> None:
        """Add the result of a resume as a stage, after the checkpoint.

        ``tried`` are the records of the processes that resumed; ``ending`` says how they ended if none has a fault.
        """
        fault = None
        resumed = next((run.fingerprint for run in tried if run.fingerprint is not None), None)
        if resumed is None:
            faults = [fault.sentence for run in tried for fault in run.faults]
            fault = f"A resume from a checkpoint fails: {faults[0] if faults else ending}"
        elif self.fingerprint is not None:
            fault = _compare_steps(self.fingerprint, resumed)
        if fault is not None:
            self.add_fault("resume", fault)
        names = [stage.name for stage in self.stages]
        place = names.index("checkpoint") + 1 if "checkpoint" in names else len(names)
        self.stages.insert(place, Stage("resume", PASSED if fault is None else FAILED, seconds))

    def save(self, folder: Path, name: str) -> None:
        """Write the record for the process that started the rehearsal."""
        (folder / _RECORDS).mkdir(exist_ok=True)
        write_text(folder / _RECORDS / f"{name}.json", json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, text: str) -> Self:
        plain: dict[str, Any] = json.loads(text)
        plain["stages"] = [Stage(**stage) for stage in plain["stages"]]
        plain["faults"] = [Fault(**fault) for fault in plain["faults"]]
        for forecast in plain["forecasts"]:
            forecast["repeated"] = [Repeated(**part) for part in forecast["repeated"]]
        plain["forecasts"] = [Forecast(**forecast) for forecast in plain["forecasts"]]
        if plain["fingerprint"] is not None:
            plain["fingerprint"] = Fingerprint(**plain["fingerprint"])
        return cls(**plain)


def read_rehearsals(folder: Path, kind: str) -> list[Rehearsed]:
    """Return what the processes of a script found, by their rank and start: of its rehearsal, or of its resume."""
    records = [Rehearsed.from_json(read_text(file)) for file in (folder / _RECORDS).glob(f"{kind}-*.json")]
    return sorted(records, key=lambda record: (record.rank, record.begun))


def _compare_steps(uninterrupted: Fingerprint, resumed: Fingerprint) -> str | None:
    """Return a sentence about what differs in a resumed step, the cause before its effects; None if nothing does."""
    what = f"step {uninterrupted.step}"
    if resumed.step != uninterrupted.step:
        return f"A resumed run continues with step {resumed.step} instead of {what}."
    if uninterrupted.is_random:
        return None
    if resumed.batches != uninterrupted.batches:
        return (
            f"A resumed run trains {what} on other examples; let the data set return the same example for an index "
            "whenever it is asked, and draw random numbers from the global generators, whose states are saved."
        )
    if not math.isclose(resumed.loss, uninterrupted.loss, rel_tol=1e-3) and uninterrupted.loss == uninterrupted.loss:
        return (
            f"A resumed run has the loss {resumed.loss:.9g} in {what}, where the uninterrupted run has "
            f"{uninterrupted.loss:.9g}; a part of the training is not in the checkpoint: let the model keep it in "
            "parameters or buffers, and callbacks in `ExportableState`."
        )
    return None


def merge_rehearsals(rehearsals: Sequence[Rehearsed]) -> Rehearsed:
    """Return the first record with the faults and warnings of the others, and the largest memory of each stage."""
    whole = rehearsals[0]
    for other in rehearsals[1:]:
        for fault in other.faults:
            whole.add_fault(fault.stage, fault.sentence)
        whole.warnings += [warning for warning in other.warnings if warning not in whole.warnings]
        for mine, theirs in zip(whole.stages, other.stages, strict=False):
            mine.memory = max(mine.memory, theirs.memory) if mine.name == theirs.name else mine.memory
    return whole
