"""What stands in for accelerate: the object user code calls as ``trainer.accelerator``, and its settings."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.accelerator.facade_accelerator import FacadeAccelerator as FacadeAccelerator

_HOMES = {"FacadeAccelerator": "portico.accelerator.facade_accelerator"}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
