"""From a configuration (plain dicts, lists and values) to objects, by the annotations of their constructors."""

import collections.abc
import inspect
import logging
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.lazy import Lazy
from portico.gradient_descent.registry import Registrable
from portico.gradient_descent.signatures import parameters_of

logger = logging.getLogger(__name__)

# Types a plain value may have where one of these is annotated; texts are not read as numbers.
_PRIMITIVES: Mapping[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str, Path),
}
_SEQUENCES = (list, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)


class ConfiguredLazy(Lazy[Any]):
    """A :class:`~portico.gradient_descent.lazy.Lazy` whose known arguments are a configuration.

    Nested objects are built anew each time, unlike those inside a partial of Hydra.
    """

    def construct(self, **extras: Any) -> Any:
        """Build the object; see :class:`~portico.gradient_descent.lazy.Lazy`.

        Raises:
            ConfigurationError: If the constructor refuses a value.
        """
        arguments = _arguments(self.constructor, self.params, extras)
        try:
            return self.constructor(**arguments)
        except ConfigurationError:
            raise
        except (ValueError, TypeError, LookupError) as error:
            configured = ", ".join(f"{name}={value!r}" for name, value in self.params.items()) or "no arguments"
            raise ConfigurationError(
                f"`{self.constructor.__qualname__}` cannot be built with {configured} ({error}); correct its "
                "configuration."
            ) from error


def from_params(base: Any, params: Any, **extras: Any) -> Any:
    """Build an object of the configuration ``params``.

    Args:
        base: Class that is wanted, or a function that makes it; a
            :class:`~portico.gradient_descent.registry.Registrable` looks up ``"type"``.
        params: A dict of constructor arguments with ``"type"``; a bare word is the type alone.
        **extras: Arguments that no configuration holds; the constructor gets those that it takes.

    Raises:
        ConfigurationError: If a key is unknown or missing, or a value of the wrong type.
    """
    constructor, arguments = _constructor_of(base, params)
    return constructor(**_arguments(constructor, arguments, extras))


def as_lazy(base: Any, given: Any) -> Lazy[Any] | None:
    """Return ``given`` as something that is built later: a dict with ``"type"``, a word, or any callable.

    Raises:
        ConfigurationError: If it names nothing that is registered, or has keys that the constructor does not take.
    """
    if given is None or isinstance(given, Lazy):
        return given
    if isinstance(given, str | Mapping):
        constructor, arguments = _constructor_of(base, given)
        _refuse_unknown(constructor, arguments)
        return ConfiguredLazy(constructor, arguments)
    if isinstance(given, partial):
        _refuse_unknown(given.func, given.keywords)
    if callable(given):
        return Lazy(given)
    raise ConfigurationError(
        f"{given!r} cannot be built into a {base.__name__}; give a dict with 'type', a registered name, a `Lazy`, or "
        "a partial."
    )


def convert(annotation: Any, value: Any, name: str, extras: Mapping[str, Any]) -> Any:
    """Return ``value`` as what ``annotation`` asks for; what is built already passes.

    Args:
        annotation: Annotation of the parameter; without one everything passes.
        value: Plain value of the configuration.
        name: Of the parameter, for the message.
        extras: Arguments that objects built on the way may take.

    Raises:
        ConfigurationError: If the value is of another type.
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in (inspect.Parameter.empty, Any) or (value is None and type(None) in inner):
        return value
    if origin in (Union, UnionType):
        return _first_that_fits(inner, value, name, extras)
    if annotation is Lazy or origin is Lazy:
        return as_lazy(inner[0] if inner else Registrable, value)
    if annotation in _PRIMITIVES:
        return _primitive(annotation, value, name)
    if origin is tuple and inner and isinstance(value, list | tuple):
        return _convert_tuple(inner, value, name, extras)
    if origin in _SEQUENCES and isinstance(value, str | Mapping):
        raise ConfigurationError(f"`{name}={value!r}` is a {type(value).__name__}; set it to a list.")
    if origin in _SEQUENCES and isinstance(value, list | tuple | set):
        made = [convert(inner[0], item, name, extras) for item in value]
        return set(made) if origin is set else made
    if origin in (dict, collections.abc.Mapping) and isinstance(value, Mapping):
        return {key: convert(inner[1], item, name, extras) for key, item in value.items()}
    if inspect.isclass(annotation) and _is_described_by(annotation, value):
        return from_params(annotation, value, **extras)
    return value


def _constructor_of(base: Any, params: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    if isinstance(params, str):
        params = {"type": params}
    if not isinstance(params, Mapping):
        raise ConfigurationError(
            f"A {base.__name__} was configured as {params!r}; give a dict of its arguments with 'type', or the type "
            "alone."
        )
    arguments = dict(params)
    if not (inspect.isclass(base) and issubclass(base, Registrable)):
        return base, arguments
    name = arguments.pop("type", base.default_implementation)
    if name is None:
        raise ConfigurationError(
            f"The configuration of a {base.__name__} has no 'type'; set it to one of: "
            f"{', '.join(base.list_available())}."
        )
    return base.by_name(name), arguments


def _arguments(
    constructor: Callable[..., Any], configured: Mapping[str, Any], extras: Mapping[str, Any]
) -> dict[str, Any]:
    _refuse_unknown(constructor, configured)
    arguments: dict[str, Any] = {}
    for name, parameter in parameters_of(constructor).items():
        if name in configured:
            if name in extras:
                logger.warning("`%s` is set in the configuration, which wins over the value at hand.", name)
            arguments[name] = convert(parameter.annotation, configured[name], name, extras)
        elif name in extras:
            arguments[name] = extras[name]
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigurationError(
                f"`{name}` is required by `{constructor.__qualname__}`, but the configuration does not hold it; add "
                "it beside 'type'."
            )
    return arguments


def _refuse_unknown(constructor: Callable[..., Any], configured: Mapping[str, Any]) -> None:
    known = parameters_of(constructor)
    unknown = [name for name in configured if name not in known]
    if unknown:
        nearest = get_close_matches(unknown[0], known, n=3)
        meant = f"; the nearest valid names are: {', '.join(nearest)}" if nearest else ""
        raise ConfigurationError(
            f"`{unknown[0]}` is not an argument of `{constructor.__qualname__}`{meant}. It takes: {', '.join(known)}."
        )


def _first_that_fits(kinds: tuple[Any, ...], value: Any, name: str, extras: Mapping[str, Any]) -> Any:
    reasons = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return convert(kind, value, name, extras)
        except ConfigurationError as error:
            reasons.append(str(error))
    raise ConfigurationError(" ".join(reasons))


def _primitive(kind: Any, value: Any, name: str) -> Any:
    is_truth_for_number = isinstance(value, bool) and kind is not bool
    if is_truth_for_number or not isinstance(value, _PRIMITIVES[kind]):
        raise ConfigurationError(
            f"`{name}={value!r}` is a {type(value).__name__}; set it to a value of type {kind.__name__}."
        )
    return value


def _convert_tuple(kinds: tuple[Any, ...], value: Any, name: str, extras: Mapping[str, Any]) -> tuple[Any, ...]:
    if kinds[-1] is Ellipsis:
        return tuple(convert(kinds[0], item, name, extras) for item in value)
    if len(kinds) != len(value):
        raise ConfigurationError(f"`{name}={value!r}` has {len(value)} entries; set it to a list of {len(kinds)}.")
    return tuple(convert(kind, item, name, extras) for kind, item in zip(kinds, value, strict=True))


def _is_described_by(annotation: type, value: Any) -> bool:
    if issubclass(annotation, Registrable):
        return isinstance(value, str | Mapping)
    return isinstance(value, Mapping) and not issubclass(annotation, Mapping)
