"""What a compiled model runs where: graphs and sessions, fallbacks, graph breaks, time and memory."""

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from portico.ort.torch_compat import counters

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class GraphRecord:
    """One graph that was built."""

    kind: str
    """``"forward"``, ``"backward"`` or ``"inference"``."""
    num_onnx_nodes: int = 0
    """Nodes handed to ONNX Runtime, before it fuses them."""
    num_sessions: int = 0
    """Parts into which the operators that run in torch cut the graph."""
    num_built: int = 0
    """Sessions that were not in the cache."""
    is_traced: bool = True
    """Whether the graph was traced; otherwise the cache had the trace too."""
    build_seconds: float = 0.0
    """Time to translate the graph and to prepare its sessions or load them from the cache."""


@dataclass
class Fallback:
    """An operator that runs in torch."""

    reason: str
    """Why it does not run in ONNX Runtime."""
    num_nodes: int = 0
    """Nodes in the graphs."""
    num_calls: int = 0
    """Calls so far."""
    seconds: float = 0.0
    """Time in all calls."""

    def time_call(self, operator: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``operator``, measuring it."""
        start = time.perf_counter()
        result = operator(*args, **kwargs)
        self.seconds += time.perf_counter() - start
        self.num_calls += 1
        return result


@dataclass
class Report:
    """What was compiled, and where it runs."""

    graphs: list[GraphRecord] = field(default_factory=list)
    """Graphs in the order in which they were built."""
    fallbacks: dict[str, Fallback] = field(default_factory=dict)
    """Operators that run in torch, by name."""
    profiled: list[Any] = field(default_factory=list)
    """Sessions that are being profiled; reading their time ends the profile."""
    has_recurrent_layers: bool = False
    """Whether the model has layers that torch does not trace, about which a warning was logged."""
    _operator_seconds: Counter[str] = field(default_factory=Counter)
    _graph_breaks: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def counting_breaks(self) -> Iterator[None]:
        """Count the graph breaks within the block: torch's own counter is global."""
        before = Counter(counters["graph_break"])
        try:
            yield
        finally:
            self._graph_breaks += Counter(counters["graph_break"]) - before

    @property
    def graph_breaks(self) -> dict[str, int]:
        """How often torch cut the model into several graphs, by cause."""
        return dict(self._graph_breaks)

    @property
    def num_built(self) -> int:
        """Number of sessions that were not in the cache."""
        return sum(graph.num_built for graph in self.graphs)

    @property
    def operator_seconds(self) -> dict[str, float]:
        """Seconds in each kind of operator of ONNX Runtime, longest first; empty without a profile."""
        while self.profiled:
            path = Path(self.profiled.pop().end_profiling())
            seconds: Counter[str] = Counter()
            for event in json.loads(path.read_text(encoding="utf-8")):
                if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                    # The profiler counts microseconds.
                    seconds[event["args"]["op_name"]] += event["dur"] / 1e6
            path.unlink()
            self._operator_seconds += seconds
        return dict(self._operator_seconds.most_common())

    def fallback(self, operator: str, reason: str) -> Fallback:
        """Return the record of an operator that runs in torch; the first call creates it, with ``reason``."""
        return self.fallbacks.setdefault(operator, Fallback(reason))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, with the peak memory of the process in bytes."""
        return {
            "graphs": [asdict(graph) for graph in self.graphs],
            "num_built": self.num_built,
            "fallbacks": {name: asdict(fallback) for name, fallback in self.fallbacks.items()},
            "graph_breaks": self.graph_breaks,
            "operator_seconds": self.operator_seconds,
            "peak_memory_bytes": peak_memory(),
        }

    def __str__(self) -> str:
        nodes = sum(graph.num_onnx_nodes for graph in self.graphs)
        seconds = sum(graph.build_seconds for graph in self.graphs)
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(graph.kind for graph in self.graphs).items())
        sessions = sum(graph.num_sessions for graph in self.graphs)
        lines = [
            f"In ONNX Runtime: {nodes} nodes of {len(self.graphs)} graphs ({kinds}); {self.num_built} of {sessions} "
            f"sessions built, the others from the cache, in {seconds:.1f} s"
        ]
        lines += [
            f"In torch: {name} ({fallback.reason}), {fallback.num_nodes} nodes, {fallback.num_calls} calls, "
            f"{fallback.seconds:.3f} s"
            for name, fallback in sorted(self.fallbacks.items())
        ]
        lines += [f"Graph break, {count} times: {cause}" for cause, count in self.graph_breaks.items()]
        total = sum(self.operator_seconds.values())
        lines += [f"{seconds / total:6.1%} in {name}" for name, seconds in list(self.operator_seconds.items())[:8]]
        return "\n".join([*lines, f"Peak memory: {peak_memory() / 2**20:.0f} MiB"])


def peak_memory() -> int:
    """Return the peak memory of the process, or of its CUDA device, in bytes."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
