"""The result of a rehearsal: the table, what a real run would take, and the page."""

import copy
import json
import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from portico.inspection.findings import FAILED, Fault, Rehearsed
from portico.inspection.rehearsal import Rehearsal, Settings
from portico.inspection.shelter import free_bytes, sheltered
from portico.observers import observe
from portico.report.page import Section, duration, html_table, render_page
from portico.report.terminal import plain_console

if TYPE_CHECKING:
    from portico.trainer import Trainer

_HEADS = ("stage", "result", "seconds", "memory", "")


class Preflight:
    """What a rehearsal found: it displays itself in a notebook, and :meth:`show` prints it.

    Args:
        rehearsed: What the processes of the script found.
        free_disk: Bytes that are free where checkpoints go.
        log: What the script printed.
    """

    def __init__(self, rehearsed: Rehearsed, free_disk: int, log: str = "") -> None:
        self.rehearsed, self.free_disk = rehearsed, free_disk
        self.log = log
        needed = self.disk_bytes
        if needed > free_disk > 0:
            rehearsed.add_fault(
                "disk",
                f"The checkpoints need {size_of(needed)}, and {size_of(free_disk)} are free for "
                f"'{rehearsed.forecasts[0].output_dir}'; set `save_total_limit`, `save_only_model=True`, or an "
                "`output_dir` on another disk.",
            )

    @property
    def faults(self) -> list[Fault]:
        return self.rehearsed.faults

    @property
    def seconds(self) -> float:
        """What the real run would take."""
        found = self.rehearsed
        return found.startup_seconds + sum(forecast.seconds for forecast in found.forecasts) + found.other_seconds

    @property
    def memory(self) -> int:
        """The peak over all stages, in bytes."""
        return max((stage.memory for stage in self.rehearsed.stages), default=0)

    @property
    def disk_bytes(self) -> int:
        return sum(forecast.disk_bytes for forecast in self.rehearsed.forecasts)

    @property
    def lead(self) -> str:
        """What the real run would take, in one sentence."""
        parts = []
        for forecast in self.rehearsed.forecasts:
            in_trials = f"in each of {forecast.num_trials} trials " if forecast.num_trials > 1 else ""
            parts.append(f"{in_trials}{forecast.num_steps:,} steps of {_time(forecast.step_seconds)}")
            for part in forecast.repeated:
                if part.times:
                    plural = "s" if part.times > 1 else ""
                    and_size = f" and {size_of(part.num_bytes)}" if part.num_bytes else ""
                    parts.append(f"{part.times:,} {part.name}{plural} of {_time(part.seconds)}{and_size}")
        return f"would take about {duration(self.seconds)} ({', '.join(parts)})"

    def lines(self) -> Iterator[str]:
        """Yield what follows the table: the forecast, disk and memory, warnings, and each fault."""
        if self.rehearsed.forecasts:
            yield f"{self.lead[0].upper()}{self.lead[1:]}."
            yield f"Disk: {size_of(self.disk_bytes)} for checkpoints, {size_of(self.free_disk)} free."
            yield f"Memory: {size_of(self.memory)} at its peak, of {size_of(self.rehearsed.device_memory)}."
        for warning in self.rehearsed.warnings:
            yield f"Warning: {' '.join(warning.split())}"
        for fault in self.faults:
            yield f"Fault ({fault.stage}): {fault.sentence}"
        if not self.faults:
            yield "Nothing would fail, as far as a rehearsal shows."

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        return [
            (
                stage.name,
                stage.result,
                f"{stage.seconds:.1f}" if stage.seconds else "",
                size_of(stage.memory) if stage.memory else "",
                stage.note,
            )
            for stage in self.rehearsed.stages
        ]

    def show(self, console: Console | None = None) -> None:
        """Print the table and what follows it."""
        console = console or plain_console(soft_wrap=True, highlight=False)
        table = Table(*_HEADS)
        for row in self.rows():
            table.add_row(*row, style="red" if row[1] == FAILED else None)
        console.print(table)
        for line in self.lines():
            console.print(line)

    def page(self) -> str:
        """Return a page with all of it."""
        faults = Markup().join(
            Markup("<li><strong>{}</strong>: {}</li>").format(fault.stage, fault.sentence) for fault in self.faults
        )
        warnings = Markup().join(Markup("<li>{}</li>").format(warning) for warning in self.rehearsed.warnings)
        disk = [
            ("disk for checkpoints", size_of(self.disk_bytes), size_of(self.free_disk)),
            ("memory at its peak", size_of(self.memory), size_of(self.rehearsed.device_memory)),
        ]
        sections = [
            Section("What would fail", Markup("<ul>{}</ul>").format(faults) if self.faults else Markup()),
            Section("Stages", html_table(_HEADS, self.rows())),
            Section("Needed", html_table(("", "needed", "there is"), disk)),
            Section("Warnings", Markup("<ul>{}</ul>").format(warnings) if warnings else Markup()),
        ]
        count = len(self.faults)
        title = f"{count} fault{'s' if count > 1 else ''}" if count else "Nothing would fail"
        return render_page(title, f"The run {self.lead}.", Markup(), sections, kicker="Preflight")

    def to_json(self) -> str:
        found = asdict(self.rehearsed)
        whole = {"seconds": self.seconds, "memory": self.memory, "disk": self.disk_bytes, "free_disk": self.free_disk}
        kept = ("stages", "faults", "warnings", "forecasts", "device_memory")
        return json.dumps({**whole, **{name: found[name] for name in kept}}, indent=2)

    def _repr_html_(self) -> str:
        listed = Markup().join(Markup("<li>{}</li>").format(line) for line in self.lines())
        return str(html_table(_HEADS, self.rows()) + Markup("<ul>{}</ul>").format(listed))

    def __repr__(self) -> str:
        return "\n".join([*("  ".join(row).rstrip() for row in self.rows()), *self.lines()])


def size_of(num_bytes: float) -> str:
    """Return a number of bytes as text, such as "1.3 GB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1e3:.0f} kB"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)


# ---- In a notebook ----


def preflight(trainer: "Trainer", *, data: bool = True, rows: int = 10_000) -> Preflight:
    """Rehearse the training of ``trainer`` in this process, and leave the trainer as it was.

    Args:
        trainer: A trainer whose ``train()`` is to be called next.
        data: Whether to read all examples.
        rows: Examples of a stream that are read.

    Returns:
        What was found; it displays itself as the last line of a cell. The resume is tried in this process, and not
        in a new one as by ``portico preflight``.
    """
    with sheltered(covers_disks=False) as shelter, _restored(trainer) as attributes:
        settings = Settings(str(shelter.folder), data, rows, redirects=True, is_inside=True, begun=time.time())
        rehearsal = Rehearsal(settings)
        rehearsal.uploads = trainer.args.push_to_hub
        trainer.args.push_to_hub = False
        rehearsal.redirect(trainer.args)
        _train(rehearsal, trainer)
        rehearsal.close()
        record = rehearsal.record
        if record.fingerprint is not None and record.checkpoint:
            trainer.optimizer, trainer.lr_scheduler = attributes["optimizer"], attributes["lr_scheduler"]
            _resume(rehearsal, trainer)
        free = free_bytes(Path(record.forecasts[0].output_dir)) if record.forecasts else 0
        return Preflight(record, free)


def _train(rehearsal: Rehearsal, trainer: "Trainer") -> None:
    with observe(rehearsal), rehearsal.watches:
        try:
            trainer.train()
        except Exception as error:  # whatever a real run would end with
            rehearsal.fail(error, trainer)
        if rehearsal.epoch is not None:
            rehearsal.epoch.restore(trainer)


def _resume(rehearsal: Rehearsal, trainer: "Trainer") -> None:
    first = rehearsal.record
    start = time.monotonic()
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__module__ == Rehearsal.__module__:
            trainer.remove_callback(callback)
    again = Rehearsal(Settings(str(rehearsal.folder), False, redirects=True, is_inside=True, resumes=first.resumes))
    _train(again, trainer)
    again.close()
    first.add_resume([again.record], "it made no step.", time.monotonic() - start)


@contextmanager
def _restored(trainer: "Trainer") -> Iterator[dict[str, Any]]:
    """Restore what a training changes: weights, arguments, data, callbacks, state and the random generators.

    Yields the attributes that the trainer has before.
    """
    weights = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
    arguments, attributes = copy.copy(vars(trainer.args)), copy.copy(vars(trainer))
    callbacks = list(trainer.callback_handler.callbacks)
    states = random.getstate(), np.random.get_state()
    show, was_training = warnings.showwarning, trainer.model.training
    try:
        with torch.random.fork_rng():
            yield attributes
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        warnings.showwarning = show
        vars(trainer.args).update(arguments)
        vars(trainer).update(attributes)
        trainer.callback_handler.callbacks[:] = callbacks
        with suppress(RuntimeError):  # of a model that a failed training has left sharded
            trainer.model.load_state_dict(weights)
        trainer.model.train(was_training)
