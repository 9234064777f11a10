"""The one warning about an older spelling."""

import sys
import warnings

_LIBRARIES = ("portico", "transformers", "dataclasses", "argparse")


def warn_of_old_name(old: str, new: str) -> None:
    """Warn that ``old`` is called ``new`` now."""
    warn_of_old_spelling(f"`{old}` is called `{new}` now; the older name still works.")


def warn_of_old_spelling(message: str) -> None:
    """Warn with ``message``, pointing at the line of the user's that is to be changed."""
    warnings.warn(message, FutureWarning, stacklevel=_depth_of_user_code())


def _depth_of_user_code() -> int:
    """Return the stack level, for a warning of the caller, of the nearest frame outside the libraries.

    Constructors are reached directly, through subclasses or through an argument parser: no fixed level is right.
    """
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, depth = frame.f_back, depth + 1
    return depth
