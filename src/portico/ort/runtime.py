"""Sessions of ONNX Runtime: their options, their cache on disk, and runs on torch tensors."""

import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import torch
from onnx import TensorProto
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from portico.errors import InputError
from portico.ort.compiler.translation import CALLING
from portico.ort.settings import SessionSettings
from portico.trust.disk import replaced

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")
VARIABLE = "PORTICO_ORT_CACHE_DIR"
OFF = "off"
_ERROR = 3
_profile_numbers = count()
# Larger results, in bytes, are not folded into constants: the zeros that the gradient of an embedding is added to
# are as large as the embedding, and would be stored, held in memory, and copied before each use.
_LARGEST_FOLDED = 2**16
_FLOATS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16", TensorProto.DOUBLE: "float64"}


@cache
def share_memory() -> None:
    """Register one CPU arena for all sessions of this process.

    An arena keeps the most that it ever needed: one for each session would keep it from torch and from the others.
    """
    import onnxruntime

    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(place, None)


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
    # On torch's stream, so that neither reads what the other is still computing.
    options = {
        "device_id": str(device.index or 0),
        "user_compute_stream": str(torch.cuda.current_stream(device).cuda_stream),
    }
    return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]


def device_of(values: Iterable[object]) -> torch.device:
    """Return the device of the first tensor that is not on the CPU, where 0-d tensors may stay, or else the CPU."""
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), CPU)


def make_session(
    model: onnx.ModelProto, settings: SessionSettings, device: torch.device = CPU, *, optimized: Path | None = None
) -> "InferenceSession":
    """Return a session that optimises ``model``, and runs it on tensors of ``device``.

    The model as ONNX Runtime optimises it on this machine is written to ``optimized``, if that is given.

    Raises:
        InputError: If ONNX Runtime has no kernel for a type that the model computes in.
    """
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    options = _options(settings)
    if optimized is not None:
        options.enable_profiling = False
        options.optimized_model_filepath = str(optimized)
        # It warns that the file is for this kind of machine only, which the keys of the cache cover.
        options.log_severity_level = max(settings.log_level, _ERROR)
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers_for(device))
    except NoKernel as error:
        operator = re.search(r"implementation for (\w+)", str(error))
        given = {value.type.tensor_type.elem_type for value in model.graph.input}
        given |= {attribute.i for node in model.graph.node if node.op_type == "Cast" for attribute in node.attribute}
        types = " and ".join(name for number, name in _FLOATS.items() if number in given) or "a type of this model"
        raise InputError(
            f"ONNX Runtime has no kernel for {operator[1] if operator else error} in {types} on {device.type}; let "
            "the model compute in float32 (leave `bf16`, `bf16_full_eval` and `precision` out, and the model uncast), "
            "or set `strategy='auto'` to run it in torch."
        ) from error


def _options(settings: SessionSettings) -> "SessionOptions":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = settings.num_threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = settings.log_level
    options.enable_profiling = settings.profile
    if settings.profile:
        # ONNX Runtime appends the time: sessions that are loaded within a millisecond would share a file.
        options.profile_file_prefix = f"{_make_profile_folder(os.getpid()).name}/{next(_profile_numbers)}"
    # A memory pattern would allocate one block for all intermediate results, in addition to what the arena holds.
    options.enable_mem_pattern = False
    share_memory()
    entries = {
        "session.use_env_allocators": "1",
        # Torch works between two runs: spinning threads would take its cores.
        "session.force_spinning_stop": "1",
        "optimization.constant_folding_max_output_size_in_bytes": str(_LARGEST_FOLDED),
    }
    for name, value in (*entries.items(), *settings.entries.items()):
        options.add_session_config_entry(name, value)
    return options


@cache
def _make_profile_folder(process: int) -> "tempfile.TemporaryDirectory[str]":
    """Make a folder, which is removed when ``process`` ends: ONNX Runtime follows links in a folder of others."""
    return tempfile.TemporaryDirectory(prefix="portico-onnxruntime-")


class SessionCache:
    """Caches the models that ONNX Runtime has optimised, one file for each.

    Files are written under a temporary name and renamed: processes may share the folder, and the last of several that
    write the same model wins, with the same content.

    Raises:
        InputError: If the folder that ``settings`` names cannot be written.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self.folder = cache_folder(settings.cache_dir)

    def session(
        self, key: str, build: Callable[[], onnx.ModelProto], device: torch.device
    ) -> "tuple[InferenceSession, bool]":
        """Return a session for tensors on ``device``, and whether it had to be built.

        ``key`` is unique to the model, which ``build`` makes if it is not in the cache.

        Raises:
            InputError: If ONNX Runtime cannot run the model there.
        """
        if self.folder is None:
            return make_session(build(), self._settings, device), True
        path = self.folder / f"{device.type}-{key}.onnx"
        session = self._load(path, device)
        if session is not None:
            return session, False
        model = build()
        try:
            with replaced(path) as staging:
                make_session(model, self._settings, device, optimized=staging)
        except OSError as error:
            # The folder could be written when the run began; a disk that is full by now must not stop it.
            logger.warning("The cache of ONNX Runtime's graphs cannot be written (%s); continuing without.", error)
        return self._load(path, device) or make_session(model, self._settings, device), True

    def _load(self, path: Path, device: torch.device) -> "InferenceSession | None":
        import onnxruntime

        if not path.is_file():
            return None
        try:
            options = _options(self._settings)
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            return onnxruntime.InferenceSession(str(path), options, providers=providers_for(device))
        except Exception as error:  # ONNX Runtime raises a different exception for each kind of damage.
            reason = " ".join(str(error).split())
            logger.warning("%s in the cache of ONNX Runtime's graphs is broken and is built again: %s", path, reason)
            return None


def cache_folder(chosen: str | Path | None) -> Path | None:
    """Create and return the folder that ``cache_dir`` or the environment chooses, or ``None`` for no cache.

    Raises:
        InputError: If a folder that the user named cannot be written.
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
                f"`{name}='{OFF}'` to rebuild the graphs at each start."
            ) from error
        logger.warning(
            "%s cannot be written, so ONNX Runtime's graphs are rebuilt at each start; set `onnx_cache_dir` to "
            "another folder.",
            folder,
        )
        return None
    return folder


class Program:
    """Calls the ``onnxruntime.InferenceSession`` of a translated model like the FX module that it came from.

    Attributes:
        num_nodes: Nodes of the model before ONNX Runtime fused them.
    """

    def __init__(self, session: "InferenceSession", device: torch.device = CPU) -> None:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        self._orders, self.num_nodes = json.loads(session.get_modelmeta().custom_metadata_map[CALLING])
        self._session = session._sess
        self._new_vector = state.OrtValueVector
        # Before 1.32, ONNX Runtime's DLPack has no booleans.
        self._passes_booleans_as_bytes = hasattr(state.OrtValueVector, "bool_tensor_indices")
        self._input_names = [value.name for value in session.get_inputs()]
        self._output_names = [value.name for value in session.get_outputs()]
        self._options = onnxruntime.RunOptions()
        kind = state.OrtDevice.cuda() if device.type == "cuda" else state.OrtDevice.cpu()
        place = state.OrtDevice(kind, state.OrtDevice.default_memory(), device.index or 0)
        self._devices = [place] * len(self._output_names)

    def __call__(self, *args: torch.Tensor | int) -> Any:
        """Run on tensors of one device and on sizes, in the order of the graph's inputs; return new tensors.

        Contiguous tensors are not copied.
        """
        feeds = self._new_vector()
        feeds.reserve(len(args))
        for value, order in zip(args, self._orders, strict=True):
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value, dtype=torch.int64)
            tensor = (value if order is None else value.permute(order)).contiguous().detach()
            if self._passes_booleans_as_bytes and tensor.dtype is torch.bool:
                feeds.push_back(to_dlpack(tensor.view(torch.uint8)), True)
            else:
                feeds.push_back(to_dlpack(tensor))
        fetches = self._new_vector()
        self._session.run_with_ortvaluevector(
            self._options, self._input_names, feeds, self._output_names, fetches, self._devices
        )
        outputs = [from_dlpack(fetches.dlpack_at(index)) for index in range(len(self._output_names))]
        if self._passes_booleans_as_bytes:
            for index in fetches.bool_tensor_indices():
                outputs[index] = outputs[index].view(torch.bool)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
