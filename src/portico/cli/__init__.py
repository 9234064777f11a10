"""The command line, and the only place that knows Hydra.

The configuration is composed, resolved to plain values, checked, and handed to the one function that it names under
`trainer.run`. Everything behind that call sees plain dicts and never a config tree.
"""

from portico.cli.app import main
from portico.cli.composition import compose

__all__ = ["compose", "main"]
