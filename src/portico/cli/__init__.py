"""The command line, and the only place that knows Hydra.

The configuration is composed, resolved to plain values and checked; the class named at its root makes an experiment of
them. Everything behind that call sees plain values and objects, never a config tree.

A command goes through :func:`portico.cli.app.main`. With ``-m``, Hydra's sweeper chooses the values of each job, and
its launcher runs the jobs: by calling :func:`portico.cli.app.run`, or with ``launcher=joblib`` and the like
(``hydra_plugins/portico_launchers.py``) by a command that does so for one job in another process. ``run`` keeps a
:class:`~portico.cli.jobs.SweepJob` in the folder of the job, of which :mod:`portico.cli.sweeps` makes the report.
"""

import argparse

from portico.imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)


def option_parser() -> argparse.ArgumentParser:
    """Return Hydra's parser of the options of ``portico train``."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()
