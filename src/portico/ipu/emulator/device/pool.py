"""The IPUs of the machine, and which programs hold them."""

import itertools
import weakref

from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.settings import settings


class DevicePool:
    """Hands out IPUs, and takes them back."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._holders = itertools.count()

    def new_holder(self) -> int:
        """Return a name for a program, unlike every other."""
        return next(self._holders)

    @property
    def num_free(self) -> int:
        """IPUs that no program holds."""
        return settings.num_ipus - sum(self._held.values())

    def acquire(self, holder: int, num_ipus: int) -> None:
        """Give ``num_ipus`` IPUs to a program.

        Args:
            holder: Name of the program, of :meth:`new_holder`.
            num_ipus: IPUs of all its replicas.

        Raises:
            Error: If fewer are free.
        """
        if num_ipus > self.num_free:
            raise Error(
                f"Failed to acquire {num_ipus} IPU(s): the machine has {settings.num_ipus}, of which "
                f"{self.num_free} are free; detach another program with `detachFromDevice()`, or use fewer IPUs."
            )
        self._held[holder] = num_ipus

    def release(self, holder: int) -> None:
        """Take the IPUs of a program back."""
        self._held.pop(holder, None)


pool = DevicePool()


class Hold:
    """The IPUs that one program holds, which are free again when it is forgotten.

    Attributes:
        is_held: Whether it holds any.
    """

    def __init__(self) -> None:
        self._holder = pool.new_holder()
        self.is_held = False
        weakref.finalize(self, pool.release, self._holder)

    def acquire(self, num_ipus: int) -> None:
        """Take IPUs.

        Raises:
            Error: If fewer are free.
        """
        pool.acquire(self._holder, num_ipus)
        self.is_held = True

    def release(self) -> None:
        """Give them back."""
        pool.release(self._holder)
        self.is_held = False
