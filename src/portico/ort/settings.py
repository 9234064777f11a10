"""``SessionSettings``, and whether ONNX Runtime is installed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from portico.errors import InputError


def find_missing_packages() -> list[str]:
    """Return the packages of ONNX Runtime that cannot be imported."""
    return [name for name in ("onnxruntime", "onnx") if find_spec(name) is None]


def require() -> None:
    """Raise an ``InputError`` that names the extra to install, if ONNX Runtime is missing."""
    missing = find_missing_packages()
    if missing:
        raise InputError(
            f"Running models in ONNX Runtime needs {' and '.join(missing)}, not installed here; install with "
            "`pip install 'portico[ort]'`, or choose another accelerator and strategy."
        )


@dataclass(frozen=True)
class SessionSettings:
    """How ONNX Runtime runs a graph.

    Raises:
        InputError: If ``num_threads`` or ``log_level`` is out of range.
    """

    num_threads: int | None = None
    """Threads that work on one operator; by default as many as torch uses."""
    log_level: int = 3
    """Least severity that ONNX Runtime prints: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Further session configuration entries of ONNX Runtime."""
    cache_dir: str | None = None
    """Folder that caches optimised graphs, or ``"off"``; by default the environment variable
    ``PORTICO_ORT_CACHE_DIR``, or else ``~/.cache/portico/onnxruntime``."""
    profile: bool = False
    """Measure the time in each kind of operator, for the report."""

    def __post_init__(self) -> None:
        if self.num_threads is not None and self.num_threads < 1:
            raise InputError(f"`num_threads={self.num_threads}` is not positive; set it to 1 or more, or None.")
        if self.log_level not in range(5):
            raise InputError(f"`log_level={self.log_level!r}` is out of range; set it to a number from 0 to 4.")
