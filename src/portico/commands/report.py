"""The command ``portico report``: the report of a run, or the comparison of several."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from portico.errors import CommandParser, command
from portico.inspection.script import add_allowed_paths


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="portico report",
        description="Write the report of a reading comprehension run again, or compare runs with the first: which "
        "answers were fixed or broken, and whether the differences are significant.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run, or a JSON file of answers by id")
    parser.add_argument(
        "others", metavar="OTHERS", type=Path, nargs="*", help="folders or files of the runs to compare with it"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="SQuAD file of the questions, if config.yaml does not name it"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page to write")
    parser.add_argument(
        "--max-megabytes",
        type=float,
        default=argparse.SUPPRESS,
        metavar="NUMBER",
        help="limit for the size of the questions to read; the others are only counted (default: 20)",
    )
    parser.add_argument(
        "--trust-config",
        action="store_true",
        help="load the data by the class, or from the hub, as config.yaml says; only for a run that you trust",
    )
    add_allowed_paths(parser)
    return parser


@command
def main(arguments: Sequence[str]) -> None:
    """Write a page and print the verdict of a comparison, and in the last line the path."""
    options = vars(build_parser().parse_args(arguments))
    from portico.mrc.report.command import report_or_compare

    path, verdict = report_or_compare(
        options.pop("run"), *options.pop("others"), typed=("portico", "report", *arguments), **options
    )
    print(*filter(None, [verdict, path]), sep="\n")
