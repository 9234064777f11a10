"""The command line, and the only place that knows Hydra.

The configuration is composed, resolved to plain values and checked; the class named at its root makes an experiment of
them. Everything behind that call sees plain values and objects, never a config tree.
"""

from portico.cli.app import main
from portico.cli.compose import compose

__all__ = ["compose", "main"]
