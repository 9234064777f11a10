"""The command ``portico preflight``: a script in rehearsal, and what would fail in its real run."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from portico.errors import CommandParser, InputError, command
from portico.inspection.script import Script, add_module_option
from portico.inspection.script_rehearsal import rehearse_script
from portico.report.page import check_writable, save_page
from portico.report.terminal import plain_console

_EPILOG = """\
Options may follow the script too, up to `--`. The exit code is 0 if nothing would fail, 1 with each fault as a
sentence, and 2 if there is nothing to rehearse.

  portico preflight train.py --learning_rate 1e-4
  portico preflight --report preflight.html -m my_package.train
  portico preflight torchrun --nproc-per-node 2 train.py
"""
# Options that may follow the script.
_ANYWHERE = ("--report", "--no-data", "--rows", "--json")
_LAUNCHERS = ("torchrun", "accelerate")


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="portico preflight",
        usage="portico preflight [OPTIONS] SCRIPT.py [ARGUMENTS]\n       portico preflight [OPTIONS] -m MODULE "
        "[ARGUMENTS]\n       portico preflight [OPTIONS] torchrun|accelerate ARGUMENTS",
        description="Rehearse a training script in a minute: its first steps, its longest examples, evaluation, "
        "checkpoint, resume, rotation, best model, final save and all of its data. Say what would fail and how to "
        "cure it, and what the real run would take. Nothing of it is written to the disk.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_module_option(parser)
    parser.add_argument("--no-data", action="store_true", help="do not read all of the data")
    parser.add_argument("--rows", type=int, default=10_000, metavar="N", help="examples of a stream to read")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


@partial(command, error_code=2)
def main(arguments: Sequence[str]) -> None:
    """Print what a rehearsal finds; exit with 1 if a real run would fail."""
    parser = build_parser()
    words, own = _split(parser, arguments)
    given = parser.parse_args(own)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(
            f"`portico preflight` was started in {os.environ['WORLD_SIZE']} processes, and would rehearse in each; "
            "let it start them: `portico preflight torchrun --nproc-per-node 2 train.py`."
        )
    if given.rows < 1:
        raise InputError(f"`--rows {given.rows}` is not positive; give a number of examples, at least 1.")
    if given.report is not None:
        check_writable(given.report)
    preflight = rehearse_script(words, checks_data=not given.no_data, num_rows=given.rows)
    if given.json:
        print(preflight.to_json())
    else:
        preflight.show(plain_console(soft_wrap=True, highlight=False))
    if given.report is not None:
        save_page(given.report, preflight.page())
    raise SystemExit(int(bool(preflight.faults)))


def _split(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command of a script, and the options that precede or follow it."""
    place = next((place for place, word in enumerate(arguments) if word in _LAUNCHERS), None)
    is_launched = place is not None and not any(Path(word).is_file() or word == "-m" for word in arguments[:place])
    if place is not None and is_launched and (launcher := _launcher(arguments[place])) is not None:
        return [sys.executable, launcher, *arguments[place + 1 :]], list(arguments[:place])
    script, own = Script.split(parser, arguments, anywhere=_ANYWHERE)
    return [sys.executable, *["-m"] * script.is_module, script.target, *script.arguments], own


def _launcher(name: str) -> str | None:
    """Return the path of a launcher, that of this Python first."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
