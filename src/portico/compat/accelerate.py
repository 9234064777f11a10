"""Make accelerate's state of the process describe the run, if accelerate is installed.

Libraries built on ``transformers.Trainer`` call accelerate's functions, loggers and states, and all of these read what
the constructor of ``accelerate.Accelerator`` writes. Portico needs no ``Accelerator``; it writes the same values.
Every private name of accelerate is used here and nowhere else.
"""

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from portico.compat.lightning import launches_workers

try:
    # This costs no time: `transformers.TrainingArguments` has imported it already.
    from accelerate import state as _accelerate
    from accelerate.utils import TorchDynamoPlugin

    # What all instances of a class share.
    _PROCESSES: dict[str, Any] = _accelerate.PartialState._shared_state
    _RUN: dict[str, Any] = _accelerate.AcceleratorState._shared_state
    _GRADIENTS: dict[str, Any] = _accelerate.GradientState._shared_state
except (ImportError, AttributeError):
    # Not installed, or a release whose states are elsewhere: they then say nothing of the run.
    _accelerate = None
    _PROCESSES = {}
    _RUN = {}
    _GRADIENTS = {}

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy


class IteratedLoader(Protocol):
    """A loader that knows its last batch."""

    end_of_dataloader: bool
    remainder: int


def get_distributed_type(strategy: "Strategy") -> str:
    """Return the value that ``accelerate.DistributedType`` has for a run, which compares equal to it."""
    if num_processes(strategy) == 1:
        return "NO"
    return "MULTI_GPU" if strategy.root_device.type == "cuda" else "MULTI_CPU"


def num_processes(strategy: "Strategy") -> int:
    """Return the number of processes of a run; 1 between calls if the strategy launches workers for each call."""
    world_size = int(getattr(strategy, "world_size", 1))
    return 1 if world_size == 1 or launches_workers(strategy) else world_size


def get_mixed_precision(strategy: "Strategy") -> str:
    """Return ``"bf16"``, ``"fp16"`` or ``"no"``."""
    return {"bf16-mixed": "bf16", "16-mixed": "fp16"}.get(str(strategy.precision_plugin.precision), "no")


def share_processes(strategy: "Strategy") -> None:
    """Write the device and the processes of ``strategy`` into accelerate's ``PartialState``."""
    if _accelerate is None:
        return
    connected = torch.distributed.is_available() and torch.distributed.is_initialized()
    state = _PROCESSES
    state |= {
        "_cpu": strategy.root_device.type == "cpu",
        "backend": torch.distributed.get_backend() if connected else None,
        "debug": state.get("debug", False),
        "device": strategy.root_device,
        # Code may wait for processes that Lightning has not started, as trl's constructors do: until then, for none.
        "distributed_type": _accelerate.DistributedType(get_distributed_type(strategy) if connected else "NO"),
        "fork_launched": False,
        "local_process_index": int(getattr(strategy, "local_rank", 0)),
        "num_processes": num_processes(strategy),
        "process_index": int(getattr(strategy, "global_rank", 0)),
    }
    if _accelerate.is_initialized():
        _RUN.update(state)


def share_precision(mixed_precision: str) -> None:
    """Write the precision into accelerate's ``AcceleratorState``, next to the processes that were shared before.

    The plugins in it remain empty: the Lightning strategy does what they would configure.
    """
    if _accelerate is not None:
        plugins = dict.fromkeys(("deepspeed_plugins", "device_mesh", "parallelism_config", "torch_tp_plugin"))
        own = {"dynamo_plugin": TorchDynamoPlugin(), "_mixed_precision": mixed_precision}
        _RUN.update({**_PROCESSES, **plugins, **own})


def forget_precision() -> None:
    """Empty accelerate's ``AcceleratorState``, as transformers does when it makes arguments."""
    if _accelerate is not None:
        _accelerate.AcceleratorState._reset_state()


def _state() -> dict[str, Any]:
    return _PROCESSES | _RUN


def has_state() -> bool:
    """Return whether an ``Accelerator``, or a state of accelerate, was made before."""
    return bool(_state())


def difference_of_states(strategy: "Strategy") -> str | None:
    """Return a clause that says how accelerate's state differs from a run on ``strategy``, ``None`` if it does not."""
    state = _state()
    if not state:
        return "there is none"
    run = {
        "device": strategy.root_device.type,
        "num_processes": num_processes(strategy),
        "process_index": int(getattr(strategy, "global_rank", 0)),
        "mixed_precision": get_mixed_precision(strategy),
    }
    configured = {**state, "device": state["device"].type, "mixed_precision": state.get("_mixed_precision", "no")}
    differing = [
        f"its `{name}` is {configured[name]!r} and not {run[name]!r}" for name in run if configured[name] != run[name]
    ]
    return " and ".join(differing) or None


class GradientState:
    """Where the process is in an accumulation window and in its loaders, as in ``accelerate.state.GradientState``.

    All instances share one state: accelerate's, where accelerate is installed.

    Attributes:
        sync_gradients: Whether the batch being trained on closes its accumulation window.
        plugin_kwargs: The accumulation settings in ``accelerator_config``, with accelerate's ``num_steps`` set to 1,
            since the trainer counts the windows.
    """

    sync_gradients: bool
    plugin_kwargs: dict[str, Any]
    _dataloader_references_ref: list[weakref.ref[IteratedLoader] | None]
    is_xla_gradients_synced = False
    initialized = True

    def __init__(self, plugin_kwargs: Mapping[str, Any] | None = None) -> None:
        self.__dict__ = _GRADIENTS
        if not _GRADIENTS:
            state = {"sync_gradients": True, "_dataloader_references_ref": [None], "plugin_kwargs": {"num_steps": 1}}
            _GRADIENTS.update({**state, "_is_xla_gradients_synced": False})
        if plugin_kwargs is not None:
            self.plugin_kwargs = {**plugin_kwargs, "num_steps": 1}

    def __reduce__(self) -> tuple[type["GradientState"], tuple[()]]:
        return type(self), ()  # the state belongs to the process

    @property
    def num_steps(self) -> int:
        return int(self.plugin_kwargs.get("num_steps", 1))

    @property
    def adjust_scheduler(self) -> bool:
        return bool(self.plugin_kwargs.get("adjust_scheduler", False))

    @property
    def sync_with_dataloader(self) -> bool:
        return bool(self.plugin_kwargs.get("sync_with_dataloader", True))

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        self.sync_gradients = sync_gradients

    @property
    def dataloader_references(self) -> list[IteratedLoader | None]:
        """``None``, then the loaders that are being iterated; the last one is the innermost."""
        return [None if reference is None else reference() for reference in self._dataloader_references_ref]

    @property
    def active_dataloader(self) -> IteratedLoader | None:
        reference = self._dataloader_references_ref[-1]
        return None if reference is None else reference()

    @property
    def in_dataloader(self) -> bool:
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        loader = self.active_dataloader
        return loader is not None and loader.end_of_dataloader

    @property
    def remainder(self) -> int:
        loader = self.active_dataloader
        return -1 if loader is None else loader.remainder

    def _add_dataloader(self, loader: IteratedLoader) -> None:
        self._dataloader_references_ref = [*self._dataloader_references_ref, weakref.ref(loader)]

    def _remove_dataloader(self, loader: IteratedLoader) -> None:
        reference = weakref.ref(loader)
        self._dataloader_references_ref = [other for other in self._dataloader_references_ref if other != reference]
