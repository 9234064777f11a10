"""Callbacks called with the parameters that they have."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.signatures import takes_any

_OLDER_NAMES = {"is_master": "is_primary"}


class CallbackList:
    """Callbacks of one kind, each called with those of the known arguments that it has parameters for.

    Args:
        callbacks: Callable objects.
        known: Names of the arguments they may take.

    Raises:
        ConfigurationError: If one cannot be called, or requires an argument that is not known.
    """

    def __init__(self, callbacks: Sequence[Any], known: Sequence[str]) -> None:
        self.callbacks = list(callbacks)
        self._adapters = [_adapter(callback, known) for callback in callbacks]

    def __call__(self, **arguments: Any) -> None:
        """Call every callback, in order."""
        for adapt in self._adapters:
            adapt(arguments)


def _adapter(callback: Any, known: Sequence[str]) -> Callable[[Mapping[str, Any]], None]:
    if not callable(callback):
        raise ConfigurationError(
            f"The callback {callback!r} cannot be called; give an object with `__call__`, or a registered name "
            "through `from_partial_objects`."
        )
    signature = inspect.signature(callback)
    wanted = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    ]
    for name in wanted:
        source = _OLDER_NAMES.get(name, name)
        if source not in known and signature.parameters[name].default is inspect.Parameter.empty:
            raise ConfigurationError(
                f"The callback {type(callback).__name__} requires the argument `{name}`, which is not known; it may "
                f"take: {', '.join(known)}."
            )
    everything = takes_any(signature)

    def call(arguments: Mapping[str, Any]) -> None:
        chosen = dict(arguments) if everything else {}
        for name in wanted:
            source = _OLDER_NAMES.get(name, name)
            if source in arguments:
                chosen[name] = arguments[source]
        callback(**chosen)

    return call
