"""The command line, and the only place that knows Hydra.

The configuration is composed, resolved to plain values and checked; the class named at its root makes an experiment of
them. Everything behind that call sees plain values and objects, never a config tree.
"""

import argparse

from portico.imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)


def option_parser() -> argparse.ArgumentParser:
    """Return Hydra's parser of the options of ``portico train``."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()
