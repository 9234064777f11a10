"""Training and evaluation in ONNX Runtime."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.ort.accelerator import ORTAccelerator as ORTAccelerator
    from portico.ort.compiling import compile as compile
    from portico.ort.report import Report as Report
    from portico.ort.settings import SessionSettings as SessionSettings
    from portico.ort.strategy import ORTDDPStrategy as ORTDDPStrategy
    from portico.ort.strategy import ORTStrategy as ORTStrategy

_HOMES = {
    "ORTAccelerator": "portico.ort.accelerator",
    "ORTDDPStrategy": "portico.ort.strategy",
    "ORTStrategy": "portico.ort.strategy",
    "Report": "portico.ort.report",
    "SessionSettings": "portico.ort.settings",
    "compile": "portico.ort.compiling",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
