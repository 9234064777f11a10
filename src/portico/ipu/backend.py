"""The one seam between portico and IPUs: the real `poptorch` where it imports, the emulator everywhere else."""

import importlib
import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

import torch

from portico.errors import InputError


@cache
def poptorch() -> ModuleType:
    """Return the module that stands for `poptorch` here.

    Raises:
        InputError: If a `poptorch` is installed but refuses to be imported.
    """
    if importlib.util.find_spec("poptorch") is None:
        return poptorch_emulator
    try:
        return importlib.import_module("poptorch")
    except Exception as error:
        raise InputError(
            f"`poptorch` is installed, but refuses to be imported beside torch {torch.__version__}: {error}. It is "
            "built for one release of torch; install that release and the portico that goes with it, or uninstall "
            "`poptorch` to use portico's emulator."
        ) from error


def __getattr__(name: str) -> Any:
    # `from portico.ipu import backend` and then `backend.Options`: every name comes through here.
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(poptorch(), name)
