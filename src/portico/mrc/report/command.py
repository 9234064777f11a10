"""The command `portico-report`: writes a run's report again, or compares two runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from portico.errors import InputError
from portico.mrc.report.comparison import align_runs, write_comparison
from portico.mrc.report.explorer import MAX_MEGABYTES
from portico.mrc.report.page import GENERATOR
from portico.mrc.report.run_folder import read_run
from portico.mrc.report.run_page import REPORT_PAGE, write_report

# Our pages have `GENERATOR` within this many bytes.
_HEAD = 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a page and print its path; on an error, print one paragraph to stderr and exit with code 1."""
    parser = argparse.ArgumentParser(
        prog="portico-report",
        description="Write the report of a reading comprehension run again, or compare two runs: which answers were "
        "fixed or broken, and whether the difference is significant.",
    )
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("other", type=Path, nargs="?", help="folder of the run to compare with it")
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="SQuAD file of the questions, if config.yaml does not name it"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page to write")
    parser.add_argument(
        "--max-megabytes",
        type=float,
        default=MAX_MEGABYTES,
        metavar="NUMBER",
        help="limit for the size of the questions to read; the others are only counted (default: %(default)g)",
    )
    try:
        print(write_page(**vars(parser.parse_args(arguments))))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def write_page(
    run: Path,
    other: Path | None = None,
    *,
    data: Path | None = None,
    output: Path | None = None,
    max_megabytes: float = MAX_MEGABYTES,
) -> Path:
    """Write the report of a run, or the comparison with another, and return the file.

    Args:
        run: Folder of a run.
        other: Folder of the run to compare with it.
        data: SQuAD file of the questions; by default the data that the runs' own configuration names.
        output: The file to write; by default ``report.html`` in the folder of the run, and for a comparison
            ``comparison-with-<run>.html`` in that of the other.
        max_megabytes: Limit for the size of the questions to read, above 0.

    Raises:
        InputError: If a run cannot be read, the runs cannot be compared or the file cannot be written. Only pages of
            this command are overwritten.
    """
    if not max_megabytes > 0:
        raise InputError(f"`--max-megabytes {max_megabytes:g}` is not positive; give a number above 0.")
    path = output or (run / REPORT_PAGE if other is None else other / f"comparison-with-{run.resolve().name}.html")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file with --output, for example {path / REPORT_PAGE}.")
    if path.exists() and not _is_ours(path):
        raise InputError(
            f"{path}: the file exists and was not written by this command; name another with --output, or move it "
            "away."
        )
    try:
        if other is None:
            write_report(path, read_run(run, data=data), max_megabytes=max_megabytes)
        else:
            first, second = align_runs(read_run(run, data=data), read_run(other, data=data))
            write_comparison(path, first, second, max_megabytes=max_megabytes)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); name another with --output.") from error
    return path


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return GENERATOR.encode() in file.read(_HEAD)
    except OSError:
        return False
