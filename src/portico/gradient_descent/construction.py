"""AllenNLP's dependency injection: objects built from plain values (dicts, lists, strings) by annotations.

A class registered with ``@Base.register("name")`` can be written as ``{"type": "name", ...}`` wherever a ``Base`` is
expected. What depends on objects that do not exist yet, as a scheduler on its optimizer, is a :class:`Lazy`.
"""

import collections.abc
import functools
import inspect
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from portico.errors import InputError, nearest_names
from portico.trust.names import resolved

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# Types that a plain value may have for an annotation. Strings are not parsed as numbers: AllenNLP 2 refuses them too.
_PRIMITIVES: Mapping[Any, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str, Path)}
_SEQUENCES = (list, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)


class ConfigurationError(InputError):
    """A configuration, or the arguments of a trainer, cannot be used; the message says what to set."""


class Registrable:
    """A base class whose implementations are found by name; ``default_implementation`` is used without a ``"type"``.

    A subclass that is decorated with ``@Base.register("name")`` can be written as ``{"type": "name"}`` wherever a
    ``Base`` is expected. So can any subclass, and any function that is annotated to return one, by its dotted path.
    """

    _registry: ClassVar[dict[type, dict[str, tuple[Any, str | None]]]] = defaultdict(dict)
    # Classes of other libraries whose subclasses a dotted path may name too.
    _accepted: ClassVar[tuple[type, ...]] = ()
    default_implementation: ClassVar[str | None] = None

    @classmethod
    def register(
        cls, name: str, constructor: str | None = None, exist_ok: bool = False
    ) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Return a decorator that registers a class under ``name``, which must not be taken.

        Args:
            name: Value of ``"type"``.
            constructor: Class method that builds objects; by default the class itself.
            exist_ok: Replace what is registered under ``name``.
        """
        registered = Registrable._registry[cls]

        def add(implementation: Callable[..., T]) -> Callable[..., T]:
            if name in registered and not exist_ok:
                raise ConfigurationError(
                    f"'{name}' cannot be registered as a {role_of(cls)} for `{implementation.__name__}`: the name is "
                    f"in use for `{registered[name][0].__name__}`; choose another one, or set `exist_ok=True`."
                )
            registered[name] = (implementation, constructor)
            return implementation

        return add

    @classmethod
    def by_name(cls, name: str) -> Callable[..., Any]:
        """Return the callable that builds the implementation called ``name``, a registered name or a dotted path."""
        implementation, constructor = cls.resolve_class_name(name)
        return getattr(implementation, constructor) if constructor else implementation

    @classmethod
    def resolve_class_name(cls, name: str) -> tuple[Any, str | None]:
        """Return the implementation called ``name`` and the name of the class method that builds it, if any."""
        registered = Registrable._registry.get(cls, {})
        if name in registered:
            return registered[name]
        if "." in name:
            try:
                found = resolved(name)
            except (ImportError, AttributeError, ValueError) as error:
                raise ConfigurationError(
                    f"'{name}' was read as the dotted path of a {role_of(cls)}, but cannot be imported ({error}); "
                    "correct the path, or install the package."
                ) from error
            check_kind(cls, found, name)
            return found, None
        available = cls.list_available()
        # AllenNLP's names mix hyphens and underscores.
        spelled = {known.replace("-", "_"): known for known in available}
        nearest = [spelled[word] for word in get_close_matches(name.replace("-", "_"), spelled, n=3)]
        meant = f"; did you mean {' or '.join(repr(word) for word in nearest)}?" if nearest else "."
        raise ConfigurationError(
            f"'{name}' is not a registered name for {role_of(cls)}{meant} The registered names are: "
            f"{', '.join(available) or 'there is none yet'}. To use your own class, import its "
            "module first, or use its dotted path as the type: 'my_package.my_module.MyClass'."
        )

    @classmethod
    def list_available(cls) -> list[str]:
        """Return the registered names, the default first."""
        names = list(Registrable._registry.get(cls, ()))
        default = cls.default_implementation
        return names if default is None else [default, *(name for name in names if name != default)]


def check_kind(base: type[Registrable], found: object, name: object) -> None:
    """Refuse ``found`` unless its class or return annotation shows, before any call, that it builds a ``base``."""
    kinds = (base, *base._accepted)
    # A parameter of a function may have an annotation that cannot be resolved.
    hints = _hints(found) or getattr(found, "__annotations__", {})
    made = found if inspect.isclass(found) else hints.get("return")
    made = get_origin(made) or made
    # By inheritance: an abstract class such as `Iterable` would accept every class with its methods, such as a file.
    is_kind = inspect.isclass(made) and any(kind in made.__mro__ for kind in kinds)
    if not is_kind and not any(found is known for known, _ in Registrable._registry.get(base, {}).values()):
        raise ConfigurationError(
            f"'{name}' is not a valid type for {role_of(base)}; name a class that derives from "
            f"{' or '.join(kind.__qualname__ for kind in kinds)}, a function whose return annotation is such a class, "
            f"or a registered name: {', '.join(base.list_available()) or 'there is none yet'}."
        )


def role_of(base: Callable[..., Any]) -> str:
    """Return what users call a base class: ``RegistrableOptimizer`` is an ``Optimizer``."""
    return base.__name__.removeprefix("Registrable") or base.__name__


class Lazy(Generic[T]):
    """A constructor with some of its arguments, called once the others exist.

    Hydra's ``_partial_: true`` makes the same thing; either can be used in place of the other.

    Args:
        constructor: Called by each :meth:`construct`.
        params: Arguments that are known already.
        **extras: More of them.
    """

    def __init__(
        self, constructor: Callable[..., T], params: Mapping[str, Any] | None = None, **extras: object
    ) -> None:
        self.constructor = constructor
        self.params = {**(params or {}), **extras}

    def construct(self, **extras: object) -> T:
        """Build the object with ``extras``, the arguments that are now known.

        Those that the constructor does not take are dropped; those in ``params`` take precedence.
        """
        taken = parameters_of(self.constructor)
        return self.constructor(**{name: value for name, value in extras.items() if name in taken} | self.params)


class ConfiguredLazy(Lazy[Any]):
    """A :class:`Lazy` whose ``params`` are a configuration.

    Nested objects are built again by each call, as in AllenNLP; those in a partial of Hydra are built once and shared.
    """

    def construct(self, **extras: object) -> Any:
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


def from_params(base: Callable[..., Any], params: object, **extras: object) -> Any:
    """Build an object from the configuration ``params``.

    Args:
        base: Class to build, or a function that builds it; a :class:`Registrable` looks up ``"type"``.
        params: A dict of constructor arguments with ``"type"``; a string is only the type.
        **extras: Arguments that no configuration contains; the constructor gets those that it takes.

    Raises:
        ConfigurationError: If a key is unknown or missing, or a value has the wrong type.
    """
    constructor, arguments = _constructor_of(base, params)
    return constructor(**_arguments(constructor, arguments, extras))


def make_lazy(base: Callable[..., Any], given: object) -> Lazy[Any] | None:
    """Return ``given`` (a dict with ``"type"``, a registered name, or a callable) as a :class:`Lazy`."""
    if given is None or isinstance(given, Lazy):
        return given
    if isinstance(given, str | Mapping):
        constructor, arguments = _constructor_of(base, given)
        _refuse_unknown(constructor, arguments)
        return ConfiguredLazy(constructor, arguments)
    if isinstance(given, functools.partial):
        _refuse_unknown(given.func, given.keywords)
    if callable(given):
        return Lazy(given)
    raise ConfigurationError(
        f"{given!r} cannot be built into a {role_of(base)}; pass a dict with 'type', a registered name, a `Lazy`, or "
        "a partial."
    )


def convert(annotation: object, value: object, name: str, extras: Mapping[str, Any]) -> Any:
    """Return ``value`` as an object of the annotated type; objects that are already built pass unchanged.

    ``name`` is the parameter's, for error messages; ``extras`` are arguments for objects built on the way.
    """
    origin = get_origin(annotation)
    inner = get_args(annotation)
    if annotation in (inspect.Parameter.empty, Any) or (value is None and type(None) in inner):
        return value
    if origin in (Union, UnionType):
        reasons = []
        for kind in inner:
            if kind is type(None):
                continue
            try:
                return convert(kind, value, name, extras)
            except ConfigurationError as error:
                reasons.append(str(error))
        raise ConfigurationError(" ".join(reasons))
    if annotation is Lazy or origin is Lazy:
        base = inner[0] if inner else Registrable
        # A partial of Hydra, which a configuration has named.
        if isinstance(value, functools.partial) and inspect.isclass(base) and issubclass(base, Registrable):
            check_kind(base, value.func, getattr(value.func, "__qualname__", value.func))
        return make_lazy(base, value)
    if annotation in _PRIMITIVES:
        # Python counts a bool as an int.
        if not isinstance(value, _PRIMITIVES[annotation]) or (isinstance(value, bool) and annotation is not bool):
            kind_name = getattr(annotation, "__name__", annotation)
            raise ConfigurationError(
                f"`{name}={value!r}` is a {type(value).__name__}; set it to a value of type {kind_name}."
            )
        if value != value:
            raise ConfigurationError(f"`{name}=nan` cannot be used; set it to a number.")
        return value
    if origin is tuple and inner and isinstance(value, list | tuple):
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(value):
            raise ConfigurationError(f"`{name}={value!r}` has {len(value)} entries; set it to a list of {len(kinds)}.")
        return tuple(convert(kind, item, name, extras) for kind, item in zip(kinds, value, strict=True))
    if origin in _SEQUENCES and isinstance(value, str | Mapping | int | float):
        kind = "number" if isinstance(value, int | float) else type(value).__name__
        raise ConfigurationError(f"`{name}={value!r}` is a {kind}; set it to a list.")
    if origin in _SEQUENCES and isinstance(value, list | tuple | set):
        made = [convert(inner[0], item, name, extras) for item in value]
        return set(made) if origin is set else made
    if origin in (dict, collections.abc.Mapping) and isinstance(value, Mapping):
        return {key: convert(inner[1], item, name, extras) for key, item in value.items()}
    if not inspect.isclass(annotation) or issubclass(annotation, Mapping):
        return value
    is_described = isinstance(value, Mapping) or (issubclass(annotation, Registrable) and isinstance(value, str))
    return from_params(annotation, value, **extras) if is_described else value


def parameters_of(constructor: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a class or function, their annotations resolved where possible.

    ``**kwargs`` represents the parameters of the parent classes, in a class method the parameters of the class itself.
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
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the content of an AllenNLP configuration file.

    Jsonnet reads the environment with ``std.extVar("NAME")``. Without ``rjsonnet``, plain JSON can be read; with it,
    a JSON file is evaluated as Jsonnet too, as AllenNLP does.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigurationError(f"`allennlp_config={path}` is not a file; set it to a .jsonnet or .json file.")
    try:
        from rjsonnet import evaluate_file
    except ImportError:
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigurationError(
                f"{file} is not plain JSON ({error}), and the package that reads Jsonnet is not installed; install it "
                "with `pip install 'portico[allennlp]'`, or correct the file."
            ) from error
    else:
        try:
            # Jsonnet takes text only; an environment variable may hold other bytes.
            environment = {name: value for name, value in os.environ.items() if value.isprintable()}
            config = json.loads(evaluate_file(str(file), ext_vars=environment))
        except RuntimeError as error:
            raise ConfigurationError(
                f"{file} cannot be read as Jsonnet ({' '.join(str(error).split())}); correct it. `std.extVar` reads "
                "environment variables, which must be set."
            ) from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{file} holds a {type(config).__name__}; write an object with the key 'trainer'.")
    return config


def _constructor_of(base: Callable[..., Any], params: object) -> tuple[Callable[..., Any], dict[str, Any]]:
    if isinstance(params, str):
        params = {"type": params}
    if not isinstance(params, Mapping):
        raise ConfigurationError(
            f"A {role_of(base)} was configured as {params!r}; set it to a dict of its arguments with 'type', or to "
            "only the type."
        )
    arguments = dict(params)
    if not (inspect.isclass(base) and issubclass(base, Registrable)):
        return base, arguments
    # As in AllenNLP, a class under which nothing is registered is what to build, unless it is a base class itself.
    if "type" not in arguments and base not in Registrable._registry and Registrable not in base.__bases__:
        return base, arguments
    name = arguments.pop("type", base.default_implementation)
    if name is None:
        names = ", ".join(base.list_available())
        allowed = f"one of: {names}" if names else "the dotted path of a class (no name is registered)"
        raise ConfigurationError(f"The configuration of a {role_of(base)} has no 'type'; set it to {allowed}.")
    return base.by_name(name), arguments


def _arguments(
    constructor: Callable[..., Any], configured: Mapping[str, Any], extras: Mapping[str, Any]
) -> dict[str, Any]:
    _refuse_unknown(constructor, configured)
    arguments: dict[str, Any] = {}
    for name, parameter in parameters_of(constructor).items():
        if name in configured:
            if name in extras:
                logger.warning(
                    "`%s` is given twice, and the configuration wins; remove it there to use the other.", name
                )
            arguments[name] = convert(parameter.annotation, configured[name], name, extras)
        elif name in extras:
            arguments[name] = extras[name]
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigurationError(
                f"`{name}` is required by `{constructor.__qualname__}`, but the configuration does not have it; add "
                "it next to 'type'."
            )
    return arguments


def _refuse_unknown(constructor: Callable[..., Any], configured: Mapping[str, Any]) -> None:
    known = parameters_of(constructor)
    unknown = [name for name in configured if name not in known]
    if unknown:
        raise ConfigurationError(
            f"`{unknown[0]}` is not an argument of `{constructor.__qualname__}`{nearest_names(unknown[0], known)} "
            f"It takes: {', '.join(known)}."
        )


def _signature_chain(constructor: Callable[..., Any]) -> list[Callable[..., Any]]:
    if inspect.ismethod(constructor) and inspect.isclass(constructor.__self__):
        return [constructor, *_signature_chain(constructor.__self__)]
    if not inspect.isclass(constructor):
        return [constructor]
    return [owner.__dict__["__init__"] for owner in constructor.__mro__[:-1] if "__init__" in owner.__dict__]


def _hints(function: object) -> dict[str, Any]:
    # A partial of Hydra has the hints of what it will call.
    while isinstance(function, functools.partial):
        function = function.func
    target = function.__init__ if inspect.isclass(function) else function
    try:
        return get_type_hints(target)
    except (NameError, TypeError):
        return {}
