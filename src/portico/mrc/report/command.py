"""The command `portico-report`: a run's report written again, or two runs compared."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from portico.errors import InputError
from portico.mrc.report.comparable import aligned
from portico.mrc.report.html.explorer import MAX_MEGABYTES
from portico.mrc.report.html.page import GENERATOR
from portico.mrc.report.run_folder import read_run
from portico.mrc.report.writing import REPORT_PAGE, write_comparison, write_report

# Where the mark of our pages stands, in bytes from the beginning.
_HEAD = 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a page and print where it is.

    Args:
        arguments: Words of the command line; by default those of the process.

    Exits with one paragraph on stderr and code 1 if a run cannot be read or the page cannot be written.
    """
    options = _parser().parse_args(arguments)
    try:
        print(write_page(**vars(options)))
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
        data: SQuAD file of the questions; by default what the runs' own configuration names.
        output: The file to write; by default ``report.html`` in the folder of the run, and for a comparison
            ``comparison-with-<run>.html`` in that of the other.
        max_megabytes: Room for the questions to read, above 0.

    Raises:
        InputError: If a run cannot be read, the runs cannot be compared or the file cannot be written. A file that is
            no page of this command is never overwritten.
    """
    if not max_megabytes > 0:
        raise InputError(f"--max-megabytes {max_megabytes:g} leaves no room for questions; give a number above 0.")
    path = output or (run / REPORT_PAGE if other is None else other / f"comparison-with-{run.resolve().name}.html")
    _check_writable(path)
    try:
        if other is None:
            write_report(path, read_run(run, data=data), max_megabytes=max_megabytes)
        else:
            first, second = aligned(read_run(run, data=data), read_run(other, data=data))
            write_comparison(path, first, second, max_megabytes=max_megabytes)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); name another with --output.") from error
    return path


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: a folder; name a file with --output, for instance {path / REPORT_PAGE}.")
    if path.exists() and GENERATOR.encode() not in _head(path):
        raise InputError(
            f"{path}: there is already a file that this command did not write; name another with "
            "--output, or move it away."
        )


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return b""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="portico-report",
        description="Write the report of a reading comprehension run again, or compare two runs: what was fixed, what "
        "broke, and whether the difference is more than chance.",
    )
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("other", type=Path, nargs="?", help="folder of the run to compare with it")
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="SQuAD file of the questions, if config.yaml does not lead to it"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page to write")
    parser.add_argument(
        "--max-megabytes",
        type=float,
        default=MAX_MEGABYTES,
        metavar="NUMBER",
        help="room for the questions to read; the others are only counted (default: %(default)g)",
    )
    return parser
