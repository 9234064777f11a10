"""What all groups of options share: checked setters, freezing, copies."""

import copy
from typing import Any, TypeVar

Group = TypeVar("Group", bound="OptionsGroup")


class OptionsGroup:
    """Named values that setters change until a loader or an executor freezes them.

    Values are read as attributes. A change after freezing raises ``AttributeError``.

    Args:
        **defaults: Every option with its default.
    """

    _values: dict[str, Any]
    _is_frozen: bool

    def __init__(self, **defaults: Any) -> None:
        object.__setattr__(self, "_values", defaults)
        object.__setattr__(self, "_is_frozen", False)

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` look names up before the values exist.
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"{type(self).__name__} has no option {name!r}; it has {', '.join(sorted(values))}")

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")
        if name in self._values:
            self._values[name] = value
        else:
            object.__setattr__(self, name, value)

    def set(self, **values: Any) -> None:
        """Change options by name.

        Raises:
            AttributeError: If the options are frozen.
        """
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")
        self._values.update(values)

    def exists(self, name: str) -> bool:
        """Return whether there is an option ``name``."""
        return name in self._values

    def toDict(self) -> dict[str, Any]:
        """Return the options by name."""
        return dict(self._values)

    def freeze(self) -> None:
        """Refuse every later change."""
        object.__setattr__(self, "_is_frozen", True)
        for group in self._subgroups():
            group.freeze()

    def _subgroups(self) -> list["OptionsGroup"]:
        return [value for value in self.__dict__.values() if isinstance(value, OptionsGroup)]

    def __deepcopy__(self: Group, memo: dict[int, Any]) -> Group:
        clone = object.__new__(type(self))
        memo[id(self)] = clone
        for name, value in self.__dict__.items():
            object.__setattr__(clone, name, copy.deepcopy(value, memo))
        object.__setattr__(clone, "_is_frozen", False)
        return clone

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OptionsGroup) or type(self) is not type(other):
            return NotImplemented
        return self._values == other._values and self._subgroups() == other._subgroups()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def require_count(value: Any, name: str) -> None:
    """Refuse anything but an int of at least 1, as ``poptorch`` does.

    Raises:
        AssertionError: Names the option and what came.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise AssertionError(f"{name} must be an integer greater than 0; {value!r} was given")


def require_type(value: Any, kinds: type | tuple[type, ...], name: str) -> None:
    """Refuse a value of another type, as ``poptorch`` does.

    Raises:
        AssertionError: Names the option, what came and what is allowed.
    """
    if not isinstance(value, kinds):
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        allowed = " or ".join(kind.__name__ for kind in kinds)
        raise AssertionError(f"{name} must be of type {allowed}; {value!r} is {type(value).__name__}")
