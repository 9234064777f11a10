"""Sessions of ONNX Runtime."""

import re
import tempfile
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto

from portico.errors import InputError
from portico.ort.runtime.memory import SHARED, share_memory
from portico.ort.runtime.providers import CPU, providers_for
from portico.ort.settings import SessionSettings

_ERROR = 3
# Bytes of the largest tensor that is computed ahead: the zeros that gradients of an embedding are added to are as
# large as the embedding, and would be stored, held, and copied before each use.
_LARGEST_FOLDED = 2**16
_FLOATS = {
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
}


def make_session(model: onnx.ModelProto, settings: SessionSettings, device: torch.device = CPU) -> Any:
    """Return an ``onnxruntime.InferenceSession`` that runs ``model``, after fusing what it can.

    Raises:
        InputError: If ONNX Runtime has no kernel for a type that the model computes in.
    """
    return _prepared(model, _running_options(settings), device)


def optimize(model: onnx.ModelProto, path: Path, settings: SessionSettings, device: torch.device = CPU) -> None:
    """Write what ONNX Runtime makes of ``model`` on this machine as an ONNX file.

    Raises:
        InputError: As :func:`make_session`.
    """
    options = _options(settings)
    options.optimized_model_filepath = str(path)
    # It warns that the file may be of use on machines like this one only: the cache's keys name the machine.
    options.log_severity_level = max(settings.log_level, _ERROR)
    _prepared(model, options, device)


def load_session(path: Path, settings: SessionSettings, device: torch.device = CPU) -> Any:
    """Return a session that runs a file of :func:`optimize` as it is."""
    import onnxruntime

    options = _running_options(settings)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=providers_for(device))


def _running_options(settings: SessionSettings) -> Any:
    options = _options(settings)
    options.enable_profiling = settings.profile
    options.profile_file_prefix = str(Path(tempfile.gettempdir()) / "portico_onnxruntime")
    return options


def _options(settings: SessionSettings) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = settings.num_threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = settings.log_level
    # One block for all that a run computes on its way would be taken beside what the arena holds already.
    options.enable_mem_pattern = False
    share_memory()
    options.add_session_config_entry(*SHARED)
    # Torch works between two runs, with threads of its own: ones that spin would take its cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(_LARGEST_FOLDED))
    for name, value in settings.entries.items():
        options.add_session_config_entry(name, value)
    return options


def _prepared(model: onnx.ModelProto, options: Any, device: torch.device) -> Any:
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers_for(device))
    except NoKernel as error:
        raise InputError(_about_missing_kernel(str(error), model, device)) from error


def _about_missing_kernel(reason: str, model: onnx.ModelProto, device: torch.device) -> str:
    operator = re.search(r"implementation for (\w+)", reason)
    given = {value.type.tensor_type.elem_type for value in model.graph.input}
    given |= {attribute.i for node in model.graph.node if node.op_type == "Cast" for attribute in node.attribute}
    types = " and ".join(name for number, name in _FLOATS.items() if number in given) or "a type of this model"
    return (
        f"ONNX Runtime has no kernel for {operator[1] if operator else reason} in {types} on {device.type}; let the "
        "model compute in float32 (leave `bf16`, `bf16_full_eval` and `precision` out, and the model uncast), or set "
        "`strategy='auto'` to run it in torch."
    )
