"""The command ``portico sweep``: the table and the page of a sweep, written again."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from portico.errors import CommandParser, command


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="portico sweep",
        description="Write sweep.json and sweep.html of a sweep again and print the table of its runs: what differs "
        "between them, what each reached, and how long it took.",
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder of a sweep, finished or running")
    return parser


@command
def main(arguments: Sequence[str]) -> None:
    given = build_parser().parse_args(arguments)
    from portico.cli.sweeps import report_sweep

    report_sweep(given.folder)
