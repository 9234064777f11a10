"""Sessions of ONNX Runtime."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
import onnxruntime
import torch


@dataclass(frozen=True)
class SessionSettings:
    """How ONNX Runtime runs a graph.

    Args:
        num_threads: Threads that work on one operator; by default as many as torch uses.
        log_level: Least severity that ONNX Runtime prints: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.
        entries: Further session configuration entries of ONNX Runtime.
    """

    num_threads: int | None = None
    log_level: int = 3
    entries: Mapping[str, str] = field(default_factory=dict)


def make_session(model: onnx.ModelProto, settings: SessionSettings) -> onnxruntime.InferenceSession:
    """Return a session that runs ``model`` on the CPU."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = settings.num_threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = settings.log_level
    # Torch works between two runs, with threads of its own: ones that spin would take its cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    for name, value in settings.entries.items():
        options.add_session_config_entry(name, value)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
