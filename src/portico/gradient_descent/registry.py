"""Classes that a configuration names by a word: ``{"type": "adamw", ...}``."""

from collections import defaultdict
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from portico.gradient_descent.errors import ConfigurationError

T = TypeVar("T")


class Registrable:
    """A base class whose implementations are found by name.

    A subclass that is decorated with ``@Base.register("name")`` can be written as ``{"type": "name"}`` wherever a
    ``Base`` is expected; so can any class by its dotted path.

    Attributes:
        default_implementation: Name that is meant when a configuration gives none.
    """

    _registry: ClassVar[dict[type, dict[str, tuple[Any, str | None]]]] = defaultdict(dict)
    default_implementation: ClassVar[str | None] = None

    @classmethod
    def register(
        cls, name: str, constructor: str | None = None, exist_ok: bool = False
    ) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Return a decorator that registers a class under ``name``.

        Args:
            name: Word for ``"type"``.
            constructor: Class method that builds objects; by default the class itself.
            exist_ok: Replace what is registered under ``name``.

        Raises:
            ConfigurationError: If the name is taken.
        """
        registered = Registrable._registry[cls]

        def add(implementation: Callable[..., T]) -> Callable[..., T]:
            if name in registered and not exist_ok:
                raise ConfigurationError(
                    f"'{name}' cannot be registered as a {cls.__name__} for `{implementation.__name__}`: the name is "
                    f"in use for `{registered[name][0].__name__}`; choose another one, or set `exist_ok=True`."
                )
            registered[name] = (implementation, constructor)
            return implementation

        return add

    @classmethod
    def by_name(cls, name: str) -> Callable[..., Any]:
        """Return what builds the implementation called ``name``, a registered word or a dotted path.

        Raises:
            ConfigurationError: If there is none; the nearest names are listed.
        """
        implementation, constructor = cls.resolve_class_name(name)
        built_by: Callable[..., Any] = getattr(implementation, constructor) if constructor else implementation
        return built_by

    @classmethod
    def resolve_class_name(cls, name: str) -> tuple[Any, str | None]:
        """Return the implementation called ``name`` and the name of the method that builds it, if there is one.

        Raises:
            ConfigurationError: If there is none.
        """
        registered = Registrable._registry[cls]
        if name in registered:
            return registered[name]
        if "." in name:
            return _by_path(name, cls.__name__), None
        available = cls.list_available()
        # AllenNLP's names mix hyphens and underscores.
        spelled = {known.replace("-", "_"): known for known in available}
        nearest = [spelled[word] for word in get_close_matches(name.replace("-", "_"), spelled, n=3)]
        meant = f"; did you mean {' or '.join(repr(word) for word in nearest)}?" if nearest else "."
        raise ConfigurationError(
            f"'{name}' is not a registered name for {cls.__name__}{meant} The registered names are: "
            f"{', '.join(available)}. A class of your own needs its module imported first, or its dotted path as "
            "the type, as in 'my_package.my_module.MyClass'."
        )

    @classmethod
    def list_available(cls) -> list[str]:
        """Return the registered names, the default first."""
        names = list(Registrable._registry[cls])
        default = cls.default_implementation
        return names if default is None else [default, *(name for name in names if name != default)]


def _by_path(path: str, wanted: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"'{path}' was read as the dotted path of a {wanted}, but cannot be imported ({error}); correct the path, "
            "or install what it belongs to."
        ) from error
