"""The backends of a hyperparameter search by name."""

import logging
from typing import Any

from transformers.trainer_utils import HPSearchBackend

from portico.errors import InputRuntimeError
from portico.tuning.backend import SearchBackend
from portico.tuning.optuna_backend import OptunaBackend
from portico.tuning.ray_backend import RayBackend
from portico.tuning.wandb_backend import WandbBackend

logger = logging.getLogger(__name__)

_BACKENDS: dict[HPSearchBackend, SearchBackend] = {
    HPSearchBackend(backend.name): backend for backend in (OptunaBackend(), RayBackend(), WandbBackend())
}


def search_backend(name: Any) -> SearchBackend:
    """Return the backend ``name``, a string or a ``HPSearchBackend``.

    Raises:
        ValueError: If there is none of that name.
    """
    return _BACKENDS[HPSearchBackend(name)]


def installed_backend(name: Any = None) -> SearchBackend:
    """Return the backend ``name``, or the first that is installed.

    Raises:
        ValueError: If there is none of that name.
        InputRuntimeError: If it, or every one, is not installed.
    """
    if name is not None:
        backend = search_backend(name)
        if not backend.is_available():
            raise InputRuntimeError(
                f"You picked the {backend.name} backend, but it is not installed. Run "
                f"`pip install {backend.requirement}`."
            )
        return backend
    available = [backend for backend in _BACKENDS.values() if backend.is_available()]
    if not available:
        commands = ", ".join(f"`pip install {backend.requirement}`" for backend in _BACKENDS.values())
        raise InputRuntimeError(f"No hyperparameter search backend available. Run one of {commands}.")
    if len(available) > 1:
        logger.info(
            "%d hyperparameter search backends available. Using %s as the default.", len(available), available[0].name
        )
    return available[0]
