"""An object that is built later, when what it depends on is there."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from portico.gradient_descent.signatures import accepted

T = TypeVar("T")


class Lazy(Generic[T]):
    """A constructor with some of its arguments, waiting for the rest.

    Hydra's ``_partial_: true`` makes the same thing; both can be given wherever the other can.

    Args:
        constructor: Called once for each :meth:`construct`.
        params: Arguments that are known already.
        **extras: More of them.
    """

    def __init__(self, constructor: Callable[..., T], params: Mapping[str, Any] | None = None, **extras: Any) -> None:
        self.constructor = constructor
        self.params = {**(params or {}), **extras}

    def construct(self, **extras: Any) -> T:
        """Build the object.

        Args:
            **extras: What has become known; what the constructor does not take is left out, and what was configured
                already wins.
        """
        known = dict(self.params)
        offered = {name: value for name, value in extras.items() if name not in known}
        return self.constructor(**known, **accepted(self.constructor, offered))
