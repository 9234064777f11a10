"""Where a run happens: the Lightning strategy behind a set of training arguments."""

import os
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.strategies import Strategy, StrategyRegistry
from lightning.pytorch.utilities.memory import garbage_collection_cuda
from torch import nn

from portico.compat.lightning import quiet_lightning
from portico.compat.transformers import HFTrainingArguments, is_in_notebook, logger
from portico.distributed.processes import count_launched_processes, is_batch_script
from portico.distributed.strategies import ddp_strategy, refuse_ddp_arguments, refuse_other_replicas, resolve_sharding
from portico.errors import InputError

# Accelerators with one device per process; the IPUs of a process are replicas.
_PROCESS_PER_DEVICE = ("auto", "cpu", "cuda", "gpu")


def resolve_placement(args: HFTrainingArguments) -> dict[str, Any]:
    """Return the ``lightning.Trainer`` arguments that place a run: accelerator, strategy, devices, precision, nodes.

    ``args`` are of either library; the fields that portico adds may be missing.
    """
    given = {
        name: getattr(args, name, None) for name in ("accelerator", "strategy", "devices", "num_nodes", "precision")
    }
    check_placement(given)
    devices, num_nodes = count_launched_processes() or (1, 1)
    return {
        "accelerator": given["accelerator"] or ("cpu" if args.use_cpu else "auto"),
        "strategy": given["strategy"] or "auto",
        "devices": given["devices"] or devices,
        "num_nodes": given["num_nodes"] or num_nodes,
        "precision": given["precision"] or _precision(args),
    }


PLACEMENT = ("accelerator", "strategy", "devices", "num_nodes", "precision")
"""The training arguments that are Lightning's."""
PRECISIONS = (
    "32-true",
    "32",
    "16-mixed",
    "bf16-mixed",
    "16",
    "bf16",
    "16-true",
    "bf16-true",
    "64-true",
    "64",
    "transformer-engine",
    "transformer-engine-float16",
)
"""The precisions of Lightning 2.6, which has no public list of them."""


def check_placement(given: Mapping[str, Any]) -> None:
    """Refuse values of ``accelerator``, ``strategy``, ``devices``, ``num_nodes`` and ``precision`` that do not exist.

    Arguments that are missing or ``None`` are left to the defaults. Objects of Lightning pass.
    """
    accelerators = ["auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators())]
    strategies = ["auto", *StrategyRegistry.available_strategies()]
    _check_name("accelerator", given.get("accelerator"), accelerators, Accelerator)
    _check_name("strategy", given.get("strategy"), strategies, Strategy)
    precision = given.get("precision")
    _check_name("precision", str(precision) if isinstance(precision, int) else precision, PRECISIONS, ())
    num_nodes = given.get("num_nodes")
    if num_nodes is not None and (type(num_nodes) is not int or num_nodes < 1):
        raise InputError(f"`num_nodes={num_nodes!r}` is not a number of machines; set it to 1 or more.")
    devices = given.get("devices")
    if devices is None or devices in ("auto", "-1", -1):
        return
    indices = devices.split(",") if isinstance(devices, str) else devices
    if isinstance(devices, str):
        is_allowed = all(part.strip().isdigit() for part in indices if part or len(indices) == 1)
    elif isinstance(devices, Sequence):
        is_allowed = bool(devices) and all(type(index) is int and index >= 0 for index in devices)
    else:
        is_allowed = type(devices) is int and devices > 0
    if not is_allowed or devices == "0":
        raise InputError(
            f"`devices={devices!r}` is not a number of devices; use an int of 1 or more, -1 for all, a list of "
            "indices, '0,1' or 'auto'. For the CPU set `use_cpu=True`."
        )


def _check_name(argument: str, value: object, known: Sequence[str], kind: type | tuple[()]) -> None:
    if value is None or isinstance(value, kind) or value in known:
        return
    nearest = get_close_matches(value, known, n=1) if isinstance(value, str) else []
    meant = f"; did you mean {nearest[0]!r}? Set" if nearest else "; set"
    raise InputError(
        f"`{argument}={value!r}` is not a name of Lightning's for `{argument}`{meant} it to one of "
        f"{', '.join(map(repr, known))}."
    )


def resolve_run_placement(args: HFTrainingArguments, model: nn.Module | None = None) -> dict[str, Any]:
    """Return the result of :func:`resolve_placement`, with the strategy as an object where portico configures it.

    The model, if known, decides on defaults of the strategy.
    """
    placement = resolve_placement(args)
    _check_launched(placement)
    strategy = resolve_sharding(args, model) or placement["strategy"]
    if strategy is placement["strategy"] and isinstance(strategy, Strategy):
        refuse_ddp_arguments(strategy, args)
        # A strategy serves one `lightning.Trainer`. Each run has a new `lightning.Trainer`, which gets a fresh copy.
        strategy = deepcopy(strategy)
    elif strategy == "auto" and _drives_several(placement):
        strategy = "ddp_fork" if is_in_notebook() else "ddp"
    if isinstance(strategy, str):
        strategy = ddp_strategy(strategy, args, model) or strategy
    return {**placement, "strategy": strategy}


def cluster_plugins(args: HFTrainingArguments, plugins: Sequence[Any] = ()) -> list[Any]:
    """Return the plugins of a run, with a cluster environment if Lightning would not detect the right one.

    Lightning detects torchrun and SLURM's tasks. Ray's machines may have different numbers of workers, and a batch
    script of SLURM, which Lightning takes for a task, starts the processes of the run itself.
    """
    has_own = getattr(getattr(args, "strategy", None), "cluster_environment", None) is not None
    if has_own or any(isinstance(plugin, ClusterEnvironment) for plugin in plugins):
        return list(plugins)
    if count_launched_processes() is None and is_batch_script():
        return [*plugins, LightningEnvironment()]
    if not _is_ray_worker():
        return list(plugins)
    from ray.train.lightning import RayLightningEnvironment

    return [*plugins, RayLightningEnvironment()]


def _is_ray_worker() -> bool:
    # Ray has imported it there, and set what torchrun sets.
    train: Any = sys.modules.get("ray.train")
    if train is None or "LOCAL_WORLD_SIZE" not in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        return False
    try:
        return bool(train.get_context().get_world_size() == int(os.environ["WORLD_SIZE"]))
    except (RuntimeError, DeprecationWarning):  # outside a worker, and in a trial of Ray Tune
        return False


def _check_launched(placement: Mapping[str, Any]) -> None:
    """Refuse a number of processes other than the number that a launcher has started already."""
    launched = count_launched_processes()
    given = _num_devices(placement), placement["num_nodes"]
    if launched in (None, given) or placement["accelerator"] not in _PROCESS_PER_DEVICE:
        return
    names = ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", "SLURM_NNODES")
    variables = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    raise InputError(
        f"The environment ({variables}) says that this process was started as one of {launched[0]} on each of "
        f"{launched[1]} machine(s), but the run is placed on devices={placement['devices']!r} and "
        f"num_nodes={placement['num_nodes']}; leave both out, or start as many processes."
    )


def _drives_several(placement: Mapping[str, Any]) -> bool:
    """Return whether Lightning would choose data-parallel training; portico's backends choose themselves."""
    if placement["accelerator"] not in _PROCESS_PER_DEVICE:
        return False
    return placement["num_nodes"] > 1 or _num_devices(placement) > 1


def _num_devices(placement: Mapping[str, Any]) -> int:
    devices = placement["devices"]
    if devices in (-1, "-1", "auto"):
        devices = 1 if placement["accelerator"] == "cpu" else torch.accelerator.device_count()
    if isinstance(devices, str):
        numbers = [part for part in devices.split(",") if part]
        devices = numbers if "," in devices else int(devices)
    return devices if isinstance(devices, int) else len(devices)


def resolve_strategy(args: HFTrainingArguments) -> Strategy:
    """Return the strategy that a run with ``args`` would use; refuse a strategy that this machine cannot run."""
    placement = resolve_placement(args)
    parts = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    unneeded: dict[str, Any] = dict.fromkeys(parts, False)
    try:
        with quiet_lightning():
            placed = pl.Trainer(**resolve_run_placement(args), plugins=cluster_plugins(args) or None, **unneeded)
    except (MisconfigurationException, ImportError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        requested = ", ".join(f"{name}={value!r}" for name, value in placement.items())
        raise InputError(
            f"Lightning cannot place the run here ({' '.join(str(error).split())}); it got {requested}. Set "
            "them to values that this machine supports, for example `accelerator='cpu'` and `devices=1`, or install "
            "what is missing."
        ) from error
    refuse_other_replicas(placed.strategy, args)
    return placed.strategy


def _precision(args: HFTrainingArguments) -> str:
    if args.fp16 and not args.bf16 and (args.use_cpu or not torch.accelerator.is_available()):
        logger.warning_once(
            "`fp16=True` has no effect on a CPU, which trains in float32, as under transformers; for mixed precision "
            "set `bf16=True` with `use_cpu=True`.",
            stacklevel=2,
        )
        return "32-true"
    if args.deepspeed:
        return "32-true"  # the engine casts
    if args.bf16:
        return "bf16-mixed"
    return "16-mixed" if args.fp16 else "32-true"


def release_memory() -> None:
    """Release unused memory of the host and the device."""
    # A failed attempt leaves activations in reference cycles; Lightning collects them, on every device.
    garbage_collection_cuda()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
