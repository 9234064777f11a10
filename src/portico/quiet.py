"""Keep Lightning's own announcements out of the facade's output; errors and other warnings pass."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_ANNOUNCERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.rank_zero",
    "lightning.fabric.utilities.distributed",
)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence what Lightning says about devices, tips and stop reasons, and its warnings that do not hold here.

    Models come in evaluation mode from ``from_pretrained``; the facade switches them at each step, so Lightning's
    warning about modules in evaluation mode would be wrong. Lightning 2.6 itself uses a name that torch deprecates.
    """
    loggers = [logging.getLogger(name) for name in _ANNOUNCERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
