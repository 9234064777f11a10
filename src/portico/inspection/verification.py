"""A script under transformers and under portico, compared step by step, and the page that shows the comparison."""

import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from markupsafe import Markup
from rich.table import Table

from portico.distributed.children import build_child_environment
from portico.errors import InputError, reason_of
from portico.inspection.comparison import (
    Growth,
    RecordedRun,
    RunDifference,
    first_difference,
    irreproducible,
    likely_causes,
    list_shared_files,
    loss_growth,
    reproducible_difference,
)
from portico.inspection.records import (
    AT_THE_SAME_TIME,
    SUFFIX,
    RecordSettings,
    build_recording_environment,
    list_redirected_folders,
    read_records,
)
from portico.inspection.script import Script
from portico.report.charts import Series, line_chart
from portico.report.page import Section, html_table, panels, render_page, save_page
from portico.report.terminal import plain_console
from portico.trust.disk import open_new, remove_tree

# Relative difference of losses up to which a run counts as the same, by what is changed.
TOLERANCES = {"strategy": 1e-4, "devices": 1e-4, "accelerator": 1e-3, "precision": 2e-2}
_OUTPUT = "output"
_LOG = "log"
_IN_USE = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)
_BETWEEN_LOOKS = 0.1  # seconds


@dataclass(frozen=True)
class _RunningScript:
    label: str
    folder: Path
    process: "subprocess.Popen[bytes]"

    def finished(self) -> RecordedRun:
        """Wait for the end, and move what the script wrote into the folder of the record."""
        code = self.process.wait()
        self.end()
        return RecordedRun(self.label, self.folder, code, self._log, **read_records(self.folder))

    def lacked_an_address(self) -> bool:
        """Return whether the script has failed because another process uses its address."""
        return bool(self.process.returncode) and _IN_USE.search(self._log) is not None

    @property
    def _log(self) -> str:
        return (self.folder / _LOG).read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """End the script if it is running; nothing of it stays next to the folders of the user.

        Raises:
            InputError: If the disk is too full for the output of the script; the output is then removed.
        """
        self.process.terminate()
        self.process.wait()
        for number, output in enumerate(list_redirected_folders(self.folder)):
            if output.exists():
                try:
                    shutil.move(output, self.folder / _OUTPUT / str(number))
                except OSError as error:
                    remove_tree(output)
                    raise InputError(
                        f"What the script wrote cannot be moved to {self.folder} ({reason_of(error)}); set `TMPDIR` "
                        "to a folder with more room, or name one with `--keep`."
                    ) from error


def _is_settled(first: RecordedRun, second: RecordedRun) -> bool:
    """Return whether runs at the same time need no repetition: what differs may come from the other run beside it."""
    if first.fails_anywhere or second.fails_anywhere:
        return True
    if first.exit_code or second.exit_code:
        return first.error == second.error
    return first_difference(first, second) is None


class Verification:
    """Runs of one script, recorded in a folder; leaving its context ends what still runs."""

    def __init__(self, script: Script, folder: Path, steps: int | None) -> None:
        self._script = script
        self._folder = folder
        self._steps = steps
        self._console = plain_console(soft_wrap=True, highlight=False)
        self._started: list[_RunningScript] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as last:  # whatever fails in it, all are called
            last.callback(self._remove_leftovers)
            for script in self._started:
                last.callback(script.end)

    def _remove_leftovers(self) -> None:
        """Remove what a killed verification left behind; it may have run both scripts at the same time."""
        for script in self._started:
            for output in list_redirected_folders(script.folder):
                plain = str(output).removesuffix(AT_THE_SAME_TIME)
                for leftover in (plain, f"{plain}{AT_THE_SAME_TIME}"):
                    with suppress(OSError):
                        remove_tree(Path(leftover))

    def run(self, report: Path | None, *, is_once: bool) -> int:
        """Compare transformers with portico, and with itself if they differ; return the exit code."""
        first, second = self._side_by_side()
        again = None
        if second is None or not _is_settled(first, second):
            # One after the other, each with the whole machine, and with what the run before has left in caches.
            first = self._record("transformers", RecordSettings("transformers", ""))
            self._check_runs_alone(first)
            again = None if is_once else self._again(first)
            second = self._record("portico", RecordSettings("portico", ""))
        self._check_runs_alone(first)
        difference = first_difference(first, second)
        if second.exit_code:
            difference = RunDifference("exit", _last_step(second), ("ended", f"exit code {second.exit_code}"))
        else:
            if again is None and difference is not None:
                again = self._again(first)
            if again is not None:
                difference = reproducible_difference(first, second, again)
        changing = {} if again is None else irreproducible(first, again)
        causes = self._causes(difference, first, second, again)
        sentence = _sentence(first, difference, is_reproducible=not changing)
        self._print(first, second, sentence, causes)
        if report is not None:
            charts = _difference_charts(first, second)
            write_page(report, first, second, sentence, causes, charts, changing)
        return int(difference is not None)

    def _side_by_side(self) -> tuple[RecordedRun, RecordedRun | None]:
        """Run the script under both libraries at the same time; the second is None if they share a core or a port.

        Differences are repeated alone: the runs may have been short of memory, or in each other's way. Sets have the
        same order in both, since peft, for example, writes some into its files.
        """
        in_order = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        first = self._start("transformers", RecordSettings("transformers", ""), **in_order)
        if len(os.sched_getaffinity(0)) == 1 or self._script.names_a_port():
            return first.finished(), None
        beside = RecordSettings("portico", "", suffix=f"{SUFFIX}{AT_THE_SAME_TIME}")
        second = self._start("portico", beside, **in_order)
        while None in (codes := (first.process.poll(), second.process.poll())) and not any(codes):
            time.sleep(_BETWEEN_LOOKS)
        if first.lacked_an_address() or second.lacked_an_address():
            print("Both need one address, so they run one after the other.", file=sys.stderr, flush=True)
            second.end()  # its processes may have joined the other run, and would wait for it
            first.end()
            return first.finished(), None
        return first.finished(), second.finished()

    def _again(self, first: RecordedRun) -> RecordedRun:
        """Run the script under transformers a second time and say what that does not reproduce, by which operators."""
        again = self._record("transformers again", RecordSettings("transformers", ""))
        self._check_runs_alone(again)
        changing = irreproducible(first, again)
        if next(iter(changing), None) in ("loss", "gradients", "gradient norm", "weights"):
            named = self._record("operators", RecordSettings("transformers", "", finds_operators=True))
            again.operators = named.operators
        if changing:
            self._console.print("Not reproducible at all, in two runs under transformers:")
            for row in changing.values():
                self._console.print(f"  {replace(row, tensor='')}")
        return again

    def _causes(
        self, difference: RunDifference | None, first: RecordedRun, second: RecordedRun, again: RecordedRun | None
    ) -> list[str]:
        if difference is None:
            return []
        if second.exit_code:
            error = (second.refusal or second.error).rstrip(".")
            what = "an override that is never called" if "never called" in error else "portico stops the script"
            return [f"{what}: {error}"]
        return likely_causes(difference, first, second, again)

    def run_against(self, against: str, report: Path | None) -> int:
        """Compare portico with itself under an option, with a tolerance; return the exit code."""
        name, _, value = against.partition("=")
        if name not in TOLERANCES or not value:
            raise InputError(
                f"`--against {against}` is unknown; give one of {', '.join(f'{name}=VALUE' for name in TOLERANCES)}."
            )
        logged = {"logging_steps": 1, "logging_strategy": "steps"}
        if name == "devices" and not (value.isdigit() and int(value)):
            raise InputError(f"`--against {against}` is not a number of devices; give one, such as devices=2.")
        options = {name: int(value) if name == "devices" else value}
        # transformers adds losses up over processes; corrected, a step has one loss on any number of them.
        shared = {"corrections": "all"} if name == "devices" else {}
        plain = RecordSettings("portico", "", options=shared, arguments=logged)
        divisor = int(value) if name == "devices" else 1
        changed = replace(plain, options={**shared, **options}, batch_divisor=divisor)
        first, second = self._record("portico", plain), self._record(against, changed)
        self._check_runs_alone(first)
        if second.exit_code:
            self._console.print(f"With {against} the script stops: {second.error}")
            return 1
        growth = loss_growth(first, second, TOLERANCES[name])
        sentence = self._print_growth(against, growth)
        if report is not None:
            write_page(report, first, second, sentence, [], _growth_charts(first, second, growth), {})
        return int(growth.beyond is not None or not growth.by_step)

    def _record(self, label: str, settings: RecordSettings) -> RecordedRun:
        """Run the script once, alone; runs one after the other write to the same paths, which their files may name."""
        return self._start(label, settings).finished()

    def _start(self, label: str, settings: RecordSettings, **environment: str) -> _RunningScript:
        print(f"Running under {label} ...", file=sys.stderr, flush=True)
        folder = self._folder / label.replace(" ", "-").replace("=", "-")
        shutil.rmtree(folder, ignore_errors=True)
        (folder / _OUTPUT).mkdir(parents=True)
        settings = replace(settings, folder=str(folder), steps=self._steps)
        words = ["-m"] * self._script.is_module + [self._script.target, *self._script.arguments]
        with open_new(folder / _LOG) as log:
            process = subprocess.Popen(
                # Without `-P` a portico.py of the working folder, which somebody may have sent, would be run instead.
                [sys.executable, "-P", "-m", "portico.inspection.recorder", *words],
                env=build_child_environment(build_recording_environment(settings)) | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started.append(_RunningScript(label, folder, process))
        return self._started[-1]

    def _check_runs_alone(self, run: RecordedRun) -> None:
        if run.refusal:
            raise InputError(run.refusal)
        if run.exit_code:
            print(run.log[-4000:], file=sys.stderr)
            raise InputError(f"The script fails by itself under {run.label}, as shown above; nothing is compared.")
        if not run.trainings:
            raise InputError(
                f"{self._script.target} built no Trainer, so there is nothing to compare; `portico run` names the "
                "loop that trained instead."
            )

    def _print(self, first: RecordedRun, second: RecordedRun, sentence: str, causes: Sequence[str]) -> None:
        table = Table("", first.label, second.label)
        for name, *counts in _counts(first, second):
            table.add_row(name, *map(str, counts))
        self._console.print(table)
        self._console.print(sentence)
        for number, cause in enumerate(causes):
            self._console.print(f"{'Also: ' if number else 'Likeliest cause: '}{cause}.")

    def _print_growth(self, against: str, growth: Growth) -> str:
        table = Table("steps", "largest relative difference of the loss", f"of the tolerance, {growth.tolerance:g}")
        for steps, gap in growth.quarters:
            table.add_row(steps, f"{gap:.2e}", f"{gap / growth.tolerance:.1%}")
        self._console.print(table)
        if not growth.by_step:
            sentence = f"no loss was logged under both portico and {against}"
        elif growth.beyond is not None:
            step, gap = growth.beyond
            sentence = f"{against} leaves the tolerance of {growth.tolerance:g} at step {step:g}: {gap:.2e}"
        else:
            sentence = f"{against} stays within the tolerance of {growth.tolerance:g} for {len(growth.by_step)} steps"
        self._console.print(sentence)
        return sentence


def _last_step(run: RecordedRun) -> int:
    return max((step["step"] for training in run.trainings for step in training["steps"]), default=0)


def _counts(*runs: RecordedRun) -> list[tuple[str, int, int]]:
    def of(run: RecordedRun) -> dict[str, int]:
        events = [event for training in run.trainings for event, _ in training["events"]]
        return {
            "trainers": len(run.trainings),
            "steps": sum(len(training["steps"]) for training in run.trainings),
            "batches": sum(len(step["batches"]) for training in run.trainings for step in training["steps"]),
            "logged rows": sum(len(training["log_history"]) for training in run.trainings),
            "events": len(events),
            "evaluations": events.count("on_evaluate"),
            "checkpoints": events.count("on_save"),
            "files compared": len(list_shared_files(run.folder / _OUTPUT)),
        }

    first, second = map(of, runs)
    return [(name, first[name], second[name]) for name in first]


def _sentence(first: RecordedRun, difference: RunDifference | None, *, is_reproducible: bool) -> str:
    if difference is not None:
        return f"First difference: {difference}"
    counts = {name: count for name, count, _ in _counts(first, first)}

    def several(name: str) -> str:
        return f"{counts[name]} {name[:-1] if counts[name] == 1 else name}"

    but = "" if is_reproducible else f", except what {first.label} itself does not reproduce"
    return f"identical for {several('steps')}, {several('checkpoints')}, {several('evaluations')}{but}"


def _difference_charts(first: RecordedRun, second: RecordedRun) -> Markup:
    """Return both curves of the loss, and their difference."""
    one, other = first.losses(), second.losses()
    gaps = [(x, b - a) for (x, a), (_, b) in zip(one, other, strict=False)]
    curves = line_chart("Loss", [Series(first.label, "first", one), Series(second.label, "second", other)])
    return curves + line_chart("Difference of the loss", [Series("difference", "first", gaps)])


def _growth_charts(first: RecordedRun, second: RecordedRun, growth: Growth) -> Markup:
    """Return both curves of the logged loss, a mean over all processes, and how their difference grows."""
    lines = [
        Series(run.label, css_class, sorted(run.logged_losses().items()))
        for run, css_class in ((first, "first"), (second, "second"))
    ]
    gaps = [(step, gap) for step, gap in growth.by_step if math.isfinite(gap)]
    grown = [Series("relative difference", "first", gaps)]
    if max((gap for _, gap in gaps), default=0.0) > growth.tolerance / 10:  # below, it would flatten the curve
        grown += [Series("tolerance", "second", [(step, growth.tolerance) for step, _ in (gaps[0], gaps[-1])])]
    title = f"Relative difference of the loss, with a tolerance of {growth.tolerance:g}"
    return line_chart("Loss", lines) + line_chart(title, grown)


def _short(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def write_page(
    path: Path,
    first: RecordedRun,
    second: RecordedRun,
    sentence: str,
    causes: Sequence[str],
    charts: Markup,
    changing: Mapping[str, RunDifference],
) -> None:
    """Write a page with charts of two runs, what was compared and the likeliest causes; it needs no other file.

    ``changing`` are the quantities that the first library itself does not reproduce.
    """
    listed = Markup("<ul>{}</ul>").format(Markup().join(Markup("<li>{}</li>").format(cause) for cause in causes))
    rows = [(name, difference.step or "", *map(_short, difference.values)) for name, difference in changing.items()]
    irreproducible_rows = html_table(("", "first at step", "one run", "another"), rows) if rows else Markup()
    sections = [
        Section("Likeliest cause", listed if causes else Markup()),
        Section(f"Not reproducible under {first.label} itself", irreproducible_rows, "Not reproducible"),
        Section("Loss", panels(charts)),
        Section("Compared", html_table(("", first.label, second.label), _counts(first, second))),
    ]
    title = f"{first.label} and {second.label}"
    save_page(path, render_page(title, sentence, Markup(), sections, kicker="Verification"))
