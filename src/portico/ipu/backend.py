"""The real ``poptorch`` if it is installed, otherwise its emulator: the only place where portico chooses.

``from portico.ipu import backend`` and then ``backend.Options`` etc.: every name is looked up in the chosen module.
"""

import importlib
import importlib.util
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from portico.errors import InputError

if TYPE_CHECKING:
    # The emulator's types also describe `poptorch`, whose API it has.
    from poptorch_emulator.dataloader import DataLoader as DataLoader
    from poptorch_emulator.executor import PoplarExecutor as PoplarExecutor
    from poptorch_emulator.options import Options as Options


@cache
def poptorch() -> ModuleType:
    """Return ``poptorch`` or its emulator.

    Raises:
        InputError: If ``poptorch`` is installed but cannot be imported.
    """
    if importlib.util.find_spec("poptorch") is None:
        import poptorch_emulator

        return poptorch_emulator
    try:
        import poptorch as installed

        return installed
    except Exception as error:
        raise InputError(
            f"`poptorch` is installed, but cannot be imported with torch {torch.__version__}: {error}. It is built "
            "for one release of torch; install that release and a portico that supports it, or uninstall `poptorch` "
            "to use portico's emulator."
        ) from error


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(poptorch(), name)
