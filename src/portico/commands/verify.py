"""The command ``portico verify``: a script under transformers and under portico, compared step by step."""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from portico.errors import CommandParser, InputError, MissingPackageError, command
from portico.inspection.script import Script, add_module_option
from portico.report.page import check_writable
from portico.trust.disk import temporary_folder

_EPILOG = """\
Options may follow the script too, up to `--`. The exit code is 0 if the runs are identical, or within the tolerance of
--against; 1 if they differ; 2 if the script fails by itself.

  portico verify train.py --learning_rate 1e-4 --steps 20
  portico verify train.py --against devices=2 --report verify.html
"""
# Options that may follow the script.
_ANYWHERE = ("--steps", "--report", "--once", "--keep", "--against")


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="portico verify",
        usage="portico verify [OPTIONS] SCRIPT.py [ARGUMENTS]",
        description="Run a script under transformers and under portico, side by side in separate processes and output "
        "folders, and compare every step: batch, loss, gradients, learning rate, weights, random states. Unless all "
        "are identical, the runs are repeated one after the other, with a second run under transformers, which tells "
        "what the script itself does not reproduce.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="end each training after N steps (default: its own end)"
    )
    add_module_option(parser)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page with both curves of the loss")
    parser.add_argument(
        "--once",
        action="store_true",
        help="when the runs are repeated, run transformers a second time only if portico differs from the first",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep records, logs and output folders here")
    parser.add_argument(
        "--against",
        metavar="OPTION=VALUE",
        help="compare portico with itself under an option of `portico run`, such as devices=2 or precision=bf16-mixed",
    )
    return parser


@partial(command, error_code=2)
def main(arguments: Sequence[str]) -> None:
    """Print a table of what is equal, or the first difference with its likeliest cause."""
    parser = build_parser()
    script, own = Script.split(parser, arguments, anywhere=_ANYWHERE)
    given = parser.parse_args(own)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(
            f"`portico verify` was started in {os.environ['WORLD_SIZE']} processes, and would run the script in each; "
            "start it without torchrun. Several processes are compared with one by `--against devices=2`."
        )
    if given.steps is not None and given.steps < 1:
        raise InputError(f"`--steps {given.steps}` is not positive; give a number of steps, at least 1.")
    if given.keep is not None and os.path.lexists(given.keep) and not _is_empty_folder(given.keep):
        raise InputError(f"`--keep {given.keep}` is in use; name an empty folder, or one that does not exist.")
    if given.report is not None:
        check_writable(given.report)
    if given.against is None and find_spec("accelerate") is None:
        raise MissingPackageError(
            "`portico verify` runs the script under transformers' own `Trainer` too, which needs accelerate; install "
            "it with `pip install 'portico[verify]'`."
        )
    from portico.inspection.verification import Verification

    with temporary_folder("portico-verify-") as temporary:
        folder = given.keep or temporary
        folder.mkdir(parents=True, exist_ok=True)
        with Verification(script, folder.resolve(), given.steps) as verification:
            if given.against is not None:
                code = verification.run_against(given.against, given.report)
            else:
                code = verification.run(given.report, is_once=given.once)
    raise SystemExit(code)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
