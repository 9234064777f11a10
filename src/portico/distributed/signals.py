"""How a run handles SIGTERM: the loop ends between two batches, and the process exits with the signal's code."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lightning.pytorch as pl
from lightning.pytorch.utilities.exceptions import SIGTERMException

from portico.compat.lightning import process_group_timeout


def disable_sigterm_handler(pl_trainer: pl.Trainer) -> None:
    """Disable Lightning's SIGTERM handler, so that the user's can save a checkpoint. Public: none."""
    pl_trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]


_SECONDS_TO_NEXT_BATCH = 20.0


def stop_between_batches(pl_trainer: pl.Trainer, on_sigterm: Callable[[], object]) -> None:
    """Make a process that receives SIGTERM leave the loop of ``pl_trainer`` before its next batch, without broadcast.

    Lightning broadcasts the signal before every batch (0.5 to 0.8 ms a step with gloo) and once more inside the
    handler, where it would interleave with the collectives in flight. The other processes end anyway, when the
    collective they wait for fails. ``on_sigterm`` is called when the signal arrives. Public: none.
    """
    connector = pl_trainer._signal_connector

    def note(signum: int, frame: object) -> None:
        on_sigterm()
        connector.received_sigterm = True

    def leave_if_received() -> None:
        if connector.received_sigterm:
            raise SIGTERMException

    connector._sigterm_notifier_fn = note  # type: ignore[method-assign, assignment]
    pl_trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = leave_if_received  # type: ignore[method-assign]


@contextmanager
def ending_in_time(pl_trainer: pl.Trainer) -> Iterator[None]:
    """End one of several processes that gets SIGTERM inside the block and does not leave it soon.

    It has the timeout of collectives, at most 20 seconds: torchrun waits for 30 seconds, and a long step or checkpoint
    may still complete. The signal is read from Python's wake-up file by a thread, since no handler runs while the main
    thread waits in a collective.
    """
    if pl_trainer.world_size == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    left = threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        with os.fdopen(reader, "rb", buffering=0) as signals:
            while arrived := signals.read(1):
                handler = type(signal.getsignal(signal.SIGTERM))
                if arrived[0] != signal.SIGTERM or not handler.__module__.startswith("lightning."):
                    continue  # the user's own handler may go on
                seconds = min(_SECONDS_TO_NEXT_BATCH, process_group_timeout(pl_trainer.strategy).total_seconds())
                if not left.wait(seconds):
                    os._exit(128 + signal.SIGTERM)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True, name="portico-sigterm").start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        os.close(writer)


@contextmanager
def ending_plainly(pl_trainer: pl.Trainer) -> Iterator[None]:
    """Let SIGTERM or an interrupt during a loop of ``pl_trainer`` end the block as it would end a plain script.

    Lightning only notes SIGTERM, checks for it between two batches (not after the last one) and then exits with code
    0, so a scheduler would take the run for finished. It turns an interrupt into an exit, which notebooks and callers
    that clean up cannot catch. Public: none.

    Raises:
        SystemExit: If SIGTERM arrived, with the code of the signal.
        KeyboardInterrupt: If the user interrupted the loop.
    """
    try:
        with ending_in_time(pl_trainer):
            yield
    except SIGTERMException as exit_:
        raise SystemExit(128 + signal.SIGTERM) from exit_
    except SystemExit as exit_:
        if isinstance(exit_.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from exit_
        raise
    except RuntimeError as error:
        if pl_trainer.received_sigterm and pl_trainer.world_size > 1:
            # Another process had left by then, and a collective with it failed.
            raise SystemExit(128 + signal.SIGTERM) from error
        raise
    if pl_trainer.received_sigterm:
        raise SystemExit(128 + signal.SIGTERM)
