"""Run all benchmarks and print each figure beside the last one stored; mark what got worse by more than the spread.

    python benchmarks/run_all.py
    python benchmarks/run_all.py --only step_overhead.py --store
    python benchmarks/run_all.py --minutes 9 --store

Every figure is portico's share of its peer's cost, measured by turns in one run, so smaller is better and figures of
different machines may be compared, except where the two libraries have their own kernels for a processor. ``--store``
keeps the new ones in ``results.json`` and in the table of ``README.md``, both next to this file, after each benchmark.
With ``--minutes`` none begins that would not end in time, one that takes longer than it did is ended, and those whose
figures are the oldest come first, so that the same command run again and again measures all.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from record import RECORD

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
TABLE = HERE / "README.md"
TABLE_STARTS, TABLE_ENDS = "<!-- table -->", "<!-- end of table -->"
COMMANDS = (
    "start_up.py",
    "step_overhead.py",
    "checkpoint_pause.py",
    "recipe.py --rounds 2 --steps 4 --warm-up 2 --ways bf16=true train_sampling_strategy=group_by_length",
    "mrc_features.py",
    "mrc_features.py --all-cores",
    "mrc_evaluation.py --sizes 2000",
    "mrc_post_processing.py",
    "mrc_packing.py",
    "mrc_packing.py --data squad_lengths --to-max-length --batches 2",
    "onnxruntime_step.py --length 128 --threads 1",
    "onnxruntime_step.py --length 384 --threads 1",
    "onnxruntime_step.py --first-step --threads 1 --rounds 5 --ways inductor inductor-dynamic onnxruntime",
    "ipu_emulation.py",
)
"""Scripts of this folder with their arguments."""

Row = Mapping[str, Any]


def results_of(command: str, timeout: float | None = None) -> dict[str, Row]:
    """Run a benchmark, which prints as it goes, and return what it recorded, by name.

    Raises:
        subprocess.CalledProcessError: If it fails.
        subprocess.TimeoutExpired: If it was ended after ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "record")
        environment = {"OMP_NUM_THREADS": "1", **os.environ, RECORD: str(path)}
        script, *arguments = shlex.split(command)
        started = time.time()
        subprocess.run([sys.executable, str(HERE / script), *arguments], env=environment, check=True, timeout=timeout)
        results = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        when = {"command": command, "measured": round(started), "seconds": round(time.time() - started)}
        return {result.pop("name"): {**result, **when} for result in results}


def verdict(new: Row, old: Row | None) -> str:
    """Return how a figure compares with the stored one: a change counts if it exceeds the spread of either run."""
    if old is None:
        return "new"
    spread = max(old["most"] - old["least"], new["most"] - new["least"]) / 2
    change = new["median"] - old["median"]
    if abs(change) <= spread:
        return "same"
    return "WORSE" if change > 0 else "better"


def shown(row: Row) -> str:
    """Return a figure with its range."""
    return f"{row['median']:.2f} ({row['least']:.2f} to {row['most']:.2f})"


def markdown(rows: Mapping[str, Row], machine: str) -> str:
    """Return the table of all figures."""
    lines = [f"Measured on {machine}.", "", "| what | of its peer's cost (range) | command |", "|---|--:|---|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {shown(row)} | `OMP_NUM_THREADS=1 python benchmarks/{row['command']}` |")
    return "\n".join(lines)


def with_table(text: str, table: str) -> str:
    """Return the page with another table."""
    start, rest = text.split(TABLE_STARTS)
    _, end = rest.split(TABLE_ENDS)
    return f"{start}{TABLE_STARTS}\n{table}\n{TABLE_ENDS}{end}"


def in_order(commands: Sequence[str], rows: Mapping[str, Row]) -> list[tuple[str, int]]:
    """Return the commands, those with the oldest figures first, and the seconds that each took then."""
    last = {row["command"]: (row.get("measured", 0), row.get("seconds", 0)) for row in rows.values()}
    ordered = sorted(commands, key=lambda command: last.get(command, (0, 0))[0])
    return [(command, last.get(command, (0, 0))[1]) for command in ordered]


def merged(rows: Mapping[str, Row], command: str, found: Mapping[str, Row]) -> dict[str, Row]:
    """Return all figures, those of ``command`` replaced by the ones found, in the order of :data:`COMMANDS`.

    Figures of commands that are no longer among them are dropped.
    """
    kept = [(name, row) for name, row in rows.items() if row["command"] != command and row["command"] in COMMANDS]
    every = [*kept, *found.items()]
    return dict(sorted(every, key=lambda one: COMMANDS.index(one[1]["command"])))


def processor() -> str:
    """Return the name of the processor, on which the ratios of libraries with kernels of their own depend."""
    name = getattr(torch.cpu, "get_capabilities", dict)().get("cpu_name")
    return f"{name} ({platform.machine()})" if name else platform.machine()


def main() -> None:
    """Run, compare and perhaps store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="SCRIPT", help="the benchmarks to run, by default all")
    parser.add_argument("--minutes", type=float, help="begin none that would take longer than what is left of these")
    parser.add_argument("--store", action="store_true", help="keep the figures")
    options = parser.parse_args()
    known = {command.split()[0] for command in COMMANDS}
    if unknown := set(options.only or ()) - known:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"rows": {}}
    rows, found, failed = stored["rows"], {}, []
    machine = f"{os.cpu_count()} cores of {processor()}, Python {platform.python_version()}"
    chosen = [one for one in COMMANDS if not options.only or one.split()[0] in options.only]
    until = None if options.minutes is None else time.time() + 60 * options.minutes
    for command, seconds in [(one, 0) for one in chosen] if until is None else in_order(chosen, rows):
        if until is not None and time.time() + seconds > until:
            print(f"--- left out, as it took {seconds} s: {command}")
            continue
        print(f"--- {command}", flush=True)
        try:
            new = results_of(command, None if until is None else max(until - time.time(), 0))
        except subprocess.TimeoutExpired:
            print(f"--- ended, as the time is up: {command}")
            continue
        except subprocess.CalledProcessError as error:
            failed.append(f"{command} ended with exit code {error.returncode}")
            continue
        found |= new
        rows = merged(rows, command, new)
        if options.store:
            RESULTS.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")
            TABLE.write_text(with_table(TABLE.read_text(encoding="utf-8"), markdown(rows, machine)), encoding="utf-8")
    print(f"{'of its peer cost (range)':60}{'now':>24}{'stored':>24}")
    for name, row in found.items():
        old = stored["rows"].get(name)
        print(f"{name:60}{shown(row):>24}{shown(old) if old else '-':>24}  {verdict(row, old)}")
    sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
    main()
