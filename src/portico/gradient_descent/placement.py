"""Where an AllenNLP trainer runs and how precisely it computes, in Lightning's words."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from portico.gradient_descent.errors import ConfigurationError

# Apex kept float32 copies of half-precision weights at O2; Lightning's mixed precision is the nearest to that.
_PRECISIONS = {"O0": "32-true", "O1": "16-mixed", "O2": "16-mixed", "O3": "16-true"}
_DDP = "ddp_find_unused_parameters_true"


def lightning_options(
    *,
    cuda_device: int | torch.device | None,
    distributed: bool,
    world_size: int,
    opt_level: str | None,
    use_amp: bool,
    grad_scaling: bool = True,
    chosen: Mapping[str, Any],
) -> dict[str, Any]:
    """Return ``accelerator``, ``strategy``, ``devices``, ``num_nodes`` and ``precision`` of a run.

    Args:
        cuda_device: Index of a GPU, -1 for the CPU, ``None`` for what there is.
        distributed: Train on ``world_size`` processes.
        world_size: Processes.
        opt_level: Precision in the words of Apex.
        use_amp: Mixed precision, AllenNLP 2's word for ``opt_level="O1"``.
        grad_scaling: Scale the loss in mixed precision.
        chosen: The same in Lightning's words; these win.

    Raises:
        ConfigurationError: If the arguments do not go together.
    """
    if use_amp and not grad_scaling:
        raise ConfigurationError(
            "`grad_scaling=False` with `use_amp=True` is not possible: Lightning's half precision always scales the "
            "loss; leave `grad_scaling` out, or set `precision='bf16-mixed'` in the place of `use_amp`."
        )
    options = {**_device(cuda_device), **_processes(distributed, world_size)}
    precision = _precision(opt_level, use_amp)
    options |= {name: value for name, value in chosen.items() if value is not None}
    if precision is not None:
        options.setdefault("precision", precision)
        _refuse_half_precision_on_cpu(options, opt_level)
    return options


def _device(cuda_device: Any) -> dict[str, Any]:
    if isinstance(cuda_device, list | tuple):
        raise ConfigurationError(
            f"`cuda_device={list(cuda_device)}` names several devices, but a trainer has a single one for each "
            f"process; set `distributed=True` and `world_size={len(cuda_device)}` for one process on each."
        )
    if isinstance(cuda_device, torch.device):
        cuda_device = -1 if cuda_device.type == "cpu" else cuda_device.index or 0
    if cuda_device is None:
        return {}
    if type(cuda_device) is not int:
        raise ConfigurationError(
            f"`cuda_device={cuda_device!r}` is a {type(cuda_device).__name__}; set it to the index of a GPU, to -1 "
            "for the CPU, or to None for what there is."
        )
    if cuda_device < 0:
        return {"accelerator": "cpu"}
    num_devices = torch.cuda.device_count()
    if cuda_device >= num_devices:
        raise ConfigurationError(
            f"`cuda_device={cuda_device}`, but this machine has {num_devices} GPUs that torch can use; set it to -1 "
            "for the CPU, or to None for what there is."
        )
    return {"accelerator": "cuda", "devices": [cuda_device]}


def _processes(distributed: bool, world_size: int) -> dict[str, Any]:
    if not distributed:
        return {}
    if world_size <= 1:
        raise ConfigurationError(
            f"`distributed=True` with `world_size={world_size}`: distributed training can be performed only with more "
            "than 1 device; set `world_size` to the number of processes."
        )
    return {"strategy": _DDP, "devices": world_size}


def _precision(opt_level: str | None, use_amp: bool) -> str | None:
    if opt_level is None:
        return "16-mixed" if use_amp else None
    if opt_level not in _PRECISIONS:
        raise ConfigurationError(
            f"`opt_level={opt_level!r}` is none of Apex's: {', '.join(_PRECISIONS)}; set it to one of them, or give "
            "Lightning's `precision`."
        )
    if opt_level in ("O2", "O3"):
        warnings.warn(
            f"`opt_level='{opt_level}'` becomes Lightning's `precision='{_PRECISIONS[opt_level]}'`, which differs "
            "from Apex: at O2 Apex keeps the weights in half precision with float32 copies, at O3 it keeps batch "
            "normalisation in float32 on request; neither is done here.",
            UserWarning,
            stacklevel=5,
        )
    return _PRECISIONS[opt_level]


def _refuse_half_precision_on_cpu(options: Mapping[str, Any], opt_level: str | None) -> None:
    accelerator = options.get("accelerator")
    on_cpu = accelerator == "cpu" or (accelerator is None and not torch.accelerator.is_available())
    if on_cpu and str(options["precision"]).startswith("16"):
        asked = "use_amp=True" if opt_level is None else f"opt_level={opt_level!r}"
        raise ConfigurationError(
            f"`{asked}` asks for half precision, which requires a CUDA device, but the run is on the CPU; leave it "
            "out, or set `precision='bf16-mixed'`."
        )
