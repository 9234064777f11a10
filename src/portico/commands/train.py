"""The command ``portico train``: Hydra's, which reads the command line itself."""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

_REHEARSED = "mode=preflight"


def build_parser() -> argparse.ArgumentParser:
    """Return Hydra's parser, without the overrides that it hands on."""
    from portico.cli import option_parser

    return option_parser()


def main(arguments: Sequence[str]) -> None:
    """Run ``python -m portico.cli`` with these arguments in this process; ``mode=preflight`` rehearses it."""
    if _REHEARSED in arguments:
        from portico.commands import preflight

        preflight.main(["-m", "portico.cli", *(word for word in arguments if word != _REHEARSED), "mode=train"])
    from portico.cli import main

    sys.argv = ["portico train", *arguments]
    if not sys.flags.safe_path:
        sys.path.append(str(Path.cwd()))  # for the user's classes; `python train.py` finds those next to it
    # Lightning starts the other processes of a run by the name of the main module, with these arguments.
    sys.modules["__main__"].__spec__ = find_spec("portico.cli.__main__")
    main()
