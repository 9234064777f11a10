"""Tensors in and out of a session without copies. The one place with private names of ONNX Runtime."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from portico.ort.runtime.providers import CPU


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
