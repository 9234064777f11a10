"""Where a reader runs."""

from typing import Any

import torch

from portico.errors import InputError

_DEVICES = "use auto, cpu, cuda, cuda:<number> or ort"


def placement(device: str | int) -> dict[str, Any]:
    """Return the training arguments that choose a device.

    Args:
        device: ``"auto"`` (the GPU where there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"ort"`` (ONNX Runtime),
            or a number as Hugging Face's pipelines take it (-1 for the CPU).

    Raises:
        InputError: If there is no such device.
    """
    if not isinstance(device, str | int):
        raise InputError(f"`device={device}` is unknown; {_DEVICES}.")
    name = ("cpu" if device < 0 else f"cuda:{device}") if isinstance(device, int) else device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return {"accelerator": "cpu", "devices": 1}
    if name == "ort":
        return {"accelerator": "ort", "strategy": "ort", "devices": 1}
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise InputError(f"`device={device}` is unknown; {_DEVICES}.")
    index, count = int(number or 0), torch.cuda.device_count()
    if index >= count:
        raise InputError(f"`device={device}` asks for GPU {index}, but there are {count}; use cpu, or auto.")
    return {"accelerator": "gpu", "devices": [index]}
