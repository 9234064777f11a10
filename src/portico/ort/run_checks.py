"""What a run in ONNX Runtime needs of Lightning's accelerator and precision."""

from typing import Any

import torch
from lightning.pytorch.plugins import MixedPrecision

from portico.errors import InputError

# Accelerators, by Lightning's names, whose tensors ONNX Runtime can read.
_READABLE = ("ort", "cpu", "cuda")


def check_accelerator(accelerator: Any) -> None:
    """Refuse accelerators whose tensors ONNX Runtime cannot read.

    Raises:
        InputError: Names those that can be chosen.
    """
    if accelerator.name() not in _READABLE:
        raise InputError(
            f"ONNX Runtime does not compute on {type(accelerator).__name__}; set `accelerator='ort'`, 'cpu' or "
            "'cuda', or choose another strategy."
        )


def place_mixed_precision(plugin: Any, device: torch.device) -> None:
    """Let mixed precision cast where the model is; Lightning takes an accelerator that it does not know for CUDA.

    Raises:
        InputError: For float16 on a CPU, where Lightning has none.
    """
    if not isinstance(plugin, MixedPrecision) or device.type != "cpu":
        return
    if plugin.precision == "16-mixed":
        raise InputError(
            "`precision='16-mixed'` asks for float16, which Lightning does not mix on a CPU; set "
            "`precision='32-true'`, or `'bf16-mixed'` for a model whose operators ONNX Runtime has in bfloat16."
        )
    plugin.device = device.type
