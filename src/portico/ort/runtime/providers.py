"""Where ONNX Runtime computes: there where the tensors are."""

from typing import Any

import torch

from portico.errors import InputError

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
