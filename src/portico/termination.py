"""What becomes of a run that is told to terminate (SIGTERM)."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import lightning.pytorch as pl
from lightning.pytorch.utilities.exceptions import SIGTERMException


@contextmanager
def exiting_on_termination(trainer: pl.Trainer) -> Iterator[None]:
    """End the process as the signal would have, if it came while a loop of ``trainer`` ran.

    Lightning only notes the signal, asks between two batches whether it came (not after the last one), and then exits
    with the code of success, so that whoever ended the run would take it for finished.

    Raises:
        SystemExit: With the code of a termination.
    """
    try:
        yield
    except SIGTERMException as exit_:
        raise SystemExit(128 + signal.SIGTERM) from exit_
    if trainer.received_sigterm:
        raise SystemExit(128 + signal.SIGTERM)
