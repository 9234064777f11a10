"""Sessions of ONNX Runtime."""

from pathlib import Path
from typing import Any

import onnx
import torch

from portico.ort.settings import SessionSettings

_ERROR = 3


def make_session(model: onnx.ModelProto, settings: SessionSettings) -> Any:
    """Return an ``onnxruntime.InferenceSession`` that runs ``model``, after fusing what it can."""
    return _session(model.SerializeToString(), _options(settings), settings)


def optimize(model: onnx.ModelProto, path: Path, settings: SessionSettings) -> None:
    """Write what ONNX Runtime makes of ``model`` on this machine as an ONNX file."""
    options = _options(settings)
    options.optimized_model_filepath = str(path)
    # It warns that the file may be of use on machines like this one only: the cache's keys name the machine.
    options.log_severity_level = max(settings.log_level, _ERROR)
    _session(model.SerializeToString(), options, settings)


def load_session(path: Path, settings: SessionSettings) -> Any:
    """Return a session that runs a file of :func:`optimize` as it is."""
    import onnxruntime

    options = _options(settings)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _session(str(path), options, settings)


def _options(settings: SessionSettings) -> Any:
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
    return options


def _session(model: bytes | str, options: Any, settings: SessionSettings) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
