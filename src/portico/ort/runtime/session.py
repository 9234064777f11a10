"""Sessions of ONNX Runtime."""

from typing import Any

import onnx
import torch

from portico.ort.settings import SessionSettings


def make_session(model: onnx.ModelProto, settings: SessionSettings) -> Any:
    """Return an ``onnxruntime.InferenceSession`` that runs ``model`` on the CPU."""
    import onnxruntime

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
