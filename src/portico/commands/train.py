"""The command ``portico train``: Hydra's, which reads the command line itself."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

_REHEARSED = "mode=preflight"


def build_parser() -> argparse.ArgumentParser:
    """Return Hydra's parser, without the overrides that it hands on."""
    from portico.cli import option_parser

    return option_parser()


def main(arguments: Sequence[str]) -> None:
    if _REHEARSED in arguments:
        from portico.commands import preflight

        preflight.main(["-m", "portico", "train", *(word for word in arguments if word != _REHEARSED), "mode=train"])
    from portico.cli import main

    if not sys.flags.safe_path:
        sys.path.append(str(Path.cwd()))  # for the user's classes; `python train.py` finds those next to it
    main(arguments)
