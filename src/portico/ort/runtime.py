"""The memory in which sessions compute, of which all of a process share one part."""

import logging
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from portico.errors import InputError
from portico.ort.compiler.translation import Ends
from portico.ort.settings import SessionSettings

# What makes a session compute in the memory that is shared.
SHARED = ("session.use_env_allocators", "1")


@cache
def share_memory() -> None:
    """Register memory of the CPU for all sessions of this process.

    With memory of its own, each session would keep what it once needed, where torch and the others cannot use it.
    """
    import onnxruntime

    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(place, None)


CPU = torch.device("cpu")


def providers_for(device: torch.device) -> list[Any]:
    """Return the execution providers of a session whose tensors are on ``device``.

    Raises:
        InputError: If ONNX Runtime is installed without a provider for it.
    """
    import onnxruntime

    if device.type == "cpu":
        return ["CPUExecutionProvider"]
    available = onnxruntime.get_available_providers()
    if device.type != "cuda" or "CUDAExecutionProvider" not in available:
        raise InputError(
            f"The model is on {device}, but this ONNX Runtime computes with {', '.join(available)} only; install "
            "`onnxruntime-gpu` for CUDA devices, or set `accelerator='ort'` to train on the CPU."
        )
    # On torch's own stream, so that each waits for what the other has begun.
    options = {
        "device_id": str(device.index or 0),
        "user_compute_stream": str(torch.cuda.current_stream(device).cuda_stream),
    }
    return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]


def device_of(values: Any) -> torch.device:
    """Return the device of the first tensor that is not on the CPU, where sizes and single numbers may stay."""
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), CPU)


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


logger = logging.getLogger(__name__)

VARIABLE = "PORTICO_ORT_CACHE_DIR"
OFF = "off"


class SessionCache:
    """Keeps the models that ONNX Runtime has optimised, one file a model.

    Files are written under another name and renamed, so that processes that share a folder never see half of one; of
    two that prepare the same model the later one wins, with the same content.

    Args:
        settings: How ONNX Runtime runs, and where the folder is.

    Raises:
        InputError: If a folder that was asked for cannot be written.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._folder = cache_folder(settings.cache_dir)

    def session(self, key: str, build: Callable[[], onnx.ModelProto], device: torch.device) -> tuple[Any, bool]:
        """Return a session, and whether it had to be built.

        Args:
            key: Equal for equal models only.
            build: Makes the model, if it is not there.
            device: Where the tensors are.

        Raises:
            InputError: If ONNX Runtime cannot run the model there.
        """
        if self._folder is None:
            return make_session(build(), self._settings, device), True
        path = self._folder / f"{device.type}-{key}.onnx"
        session = self._loaded(path, device)
        if session is not None:
            return session, False
        model = build()
        self._write(model, path, device)
        return self._loaded(path, device) or make_session(model, self._settings, device), True

    def _loaded(self, path: Path, device: torch.device) -> Any:
        if not path.is_file():
            return None
        try:
            return load_session(path, self._settings, device)
        except Exception as error:  # ONNX Runtime has an exception of its own for each kind of damage.
            reason = " ".join(str(error).split())
            logger.warning("%s in the cache of ONNX Runtime's graphs is broken and is built again: %s", path, reason)
            return None

    def _write(self, model: onnx.ModelProto, path: Path, device: torch.device) -> None:
        try:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
                new = Path(folder) / path.name
                optimize(model, new, self._settings, device)
                new.replace(path)
        except OSError as error:
            # The folder could be written when the run began. A full disk is no reason to stop it now.
            logger.warning("The cache of ONNX Runtime's graphs cannot be written (%s); the run goes on.", error)


def cache_folder(chosen: str | Path | None) -> Path | None:
    """Return the folder of the cache, which is made; ``None`` for no cache.

    Args:
        chosen: A folder, or ``"off"``; ``None`` for that of the environment variable ``PORTICO_ORT_CACHE_DIR``, which
            may be ``off`` as well, or else ``~/.cache/portico/onnxruntime``.

    Raises:
        InputError: If a folder that was asked for cannot be written.
    """
    wanted = chosen or os.environ.get(VARIABLE)
    if str(wanted).lower() == OFF:
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = Path(wanted or base / "portico" / "onnxruntime").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if wanted:
            name = "onnx_cache_dir" if chosen else VARIABLE
            raise InputError(
                f"`{name}={str(wanted)!r}` cannot be written ({error.strerror}); give a folder that can, or "
                f"`{name}='{OFF}'` to build the graphs anew at each start."
            ) from error
        logger.warning("%s cannot be written, so ONNX Runtime's graphs are built anew at each start.", folder)
        return None
    return folder


class Binding:
    """Runs a session on torch tensors.

    Args:
        session: An ``onnxruntime.InferenceSession``.
        device: Where the tensors are; on a CUDA device too nothing is copied.
    """

    def __init__(self, session: Any, device: torch.device = CPU) -> None:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        self._session = session._sess
        self._new_vector = state.OrtValueVector
        self._input_names = [value.name for value in session.get_inputs()]
        self._output_names = [value.name for value in session.get_outputs()]
        self._options = onnxruntime.RunOptions()
        kind = state.OrtDevice.cuda() if device.type == "cuda" else state.OrtDevice.cpu()
        place = state.OrtDevice(kind, state.OrtDevice.default_memory(), device.index or 0)
        self._devices = [place] * len(self._output_names)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on contiguous tensors and return new ones; boolean ones come back as boolean."""
        feeds = self._new_vector()
        feeds.reserve(len(inputs))
        for tensor in inputs:
            # DLPack of ONNX Runtime has no booleans: they travel as bytes.
            is_bool = tensor.dtype is torch.bool
            feeds.push_back(to_dlpack(tensor.view(torch.uint8) if is_bool else tensor.detach()), is_bool)
        fetches = self._new_vector()
        self._session.run_with_ortvaluevector(
            self._options, self._input_names, feeds, self._output_names, fetches, self._devices
        )
        booleans = set(fetches.bool_tensor_indices())
        return [
            from_dlpack(fetches.dlpack_at(index)).view(torch.bool)
            if index in booleans
            else from_dlpack(fetches.dlpack_at(index))
            for index in range(len(self._output_names))
        ]


class Program:
    """Calls an ONNX Runtime session as the FX module that it came from was called.

    Args:
        session: An ``onnxruntime.InferenceSession`` of a translated model.
        device: Where the tensors are.

    Attributes:
        num_nodes: Nodes of the model before ONNX Runtime fused them.
    """

    def __init__(self, session: Any, device: torch.device = CPU) -> None:
        ends = Ends.of(session.get_modelmeta().custom_metadata_map)
        self.num_nodes = ends.num_nodes
        self._orders = ends.input_orders
        self._binding = Binding(session, device)

    def __call__(self, *args: Any) -> Any:
        """Run on tensors and sizes, in the order of the graph's inputs."""
        inputs = [_laid_out(value, order) for value, order in zip(args, self._orders, strict=True)]
        outputs = self._binding(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _laid_out(value: Any, order: tuple[int, ...] | None) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=torch.int64)
    if order is not None:
        value = value.permute(order)
    return value.contiguous()
