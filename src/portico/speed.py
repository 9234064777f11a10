"""The training arguments that make training fast on this machine; ``docs/speed.md`` has what each gains."""

import importlib.util
import os
from typing import Any

import torch

_MOST_WORKERS = 8
# What torch calls the instructions of a CPU that multiply in bfloat16. AMD's processors gain the more, since MKL's
# 32-bit products use half of their registers there.
_COMPUTE_IN_BFLOAT16 = ("amx_bf16", "avx512_bf16")
# The arguments below, and what they are without anything that makes them faster.
_NEUTRAL: dict[str, Any] = {
    "use_cpu": False,
    "bf16": False,
    "tf32": None,
    "torch_compile": False,
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
}


def fastest_arguments(*, use_cpu: bool = False, small_model: bool = False) -> dict[str, Any]:
    """Return training arguments for speed, for an accelerator if there is one, else for the CPU.

    They change numbers within the precision of bfloat16, but neither the batches nor their order. On a CPU mixed
    precision is faster only with instructions for bfloat16 (AMX or AVX-512), and with AMX not for small models;
    compiled code was slower than eager mode in every training measured, so nothing else is set there.

    Args:
        use_cpu: Leave accelerators unused.
        small_model: The model is so small, as one of width 128 is, that bfloat16 may slow it down on a CPU.

    Returns:
        Values of ``use_cpu``, ``bf16``, ``tf32``, ``torch_compile``, ``dataloader_num_workers`` and
        ``dataloader_persistent_workers``.
    """
    if use_cpu or not torch.cuda.is_available():
        # Torch 2.9 does not say what a CPU has.
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        bf16 = any(capabilities.get(name, False) for name in _COMPUTE_IN_BFLOAT16) and not small_model
        # Transformers refuses mixed precision on a CPU that was not asked for.
        return {**_NEUTRAL, "bf16": bf16, "use_cpu": use_cpu or bf16}
    workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)) // torch.cuda.device_count())
    has_tensor_cores = torch.cuda.get_device_capability() >= (8, 0)
    return {
        "use_cpu": False,
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        "tf32": True if has_tensor_cores else None,
        # Inductor needs Triton, which is not installed with torch on every system.
        "torch_compile": importlib.util.find_spec("triton") is not None,
        "dataloader_num_workers": workers,
        "dataloader_persistent_workers": workers > 0,
    }
