"""What a constructor takes."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def parameters_of(constructor: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a class or function.

    Those behind ``**kwargs`` come from the parent classes, and for a class method from the class that it builds.

    Annotations that are strings are resolved where they can be.
    """
    parameters: dict[str, inspect.Parameter] = {}
    for function in _signature_chain(constructor):
        signature = inspect.signature(function)
        hints = _hints(function)
        for name, parameter in signature.parameters.items():
            if parameter.kind in _NAMED and name != "self":
                parameters.setdefault(name, parameter.replace(annotation=hints.get(name, parameter.annotation)))
        if not takes_any(signature):
            break
    return parameters


def takes_any(signature: inspect.Signature) -> bool:
    """Return whether a signature ends in ``**kwargs``."""
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def accepted(constructor: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of ``offered`` that ``constructor`` has parameters for."""
    names = parameters_of(constructor)
    return {name: value for name, value in offered.items() if name in names}


def _signature_chain(constructor: Callable[..., Any]) -> list[Callable[..., Any]]:
    if inspect.ismethod(constructor) and inspect.isclass(constructor.__self__):
        return [constructor, *_signature_chain(constructor.__self__)]
    if not inspect.isclass(constructor):
        return [constructor]
    return [owner.__dict__["__init__"] for owner in constructor.__mro__[:-1] if "__init__" in owner.__dict__]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    # A partial of Hydra has the hints of what it will call.
    while isinstance(function, functools.partial):
        function = function.func
    target = function.__init__ if inspect.isclass(function) else function
    try:
        return get_type_hints(target)
    except (NameError, TypeError):
        return {}
