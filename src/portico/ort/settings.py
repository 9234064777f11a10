from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SessionSettings:
    """How ONNX Runtime runs a graph.

    Args:
        num_threads: Threads that work on one operator; by default as many as torch uses.
        log_level: Least severity that ONNX Runtime prints: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.
        entries: Further session configuration entries of ONNX Runtime.
        cache_dir: Folder in which prepared graphs are kept, or ``"off"``; by default that of the environment variable
            ``PORTICO_ORT_CACHE_DIR``, or else ``~/.cache/portico/onnxruntime``.
        profile: Measure the time in each kind of operator, for the report.
    """

    num_threads: int | None = None
    log_level: int = 3
    entries: Mapping[str, str] = field(default_factory=dict)
    cache_dir: str | None = None
    profile: bool = False
