"""What user code reads and calls on an ``accelerate.Accelerator`` beside its work on tensors, models and loaders."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

_Function = Callable[..., Any]


class AcceleratorSurface(ABC):
    """The rest of the surface, said in terms of a few facts that a subclass gives.

    Attributes:
        deepspeed_plugin: None: the Lightning strategy holds what DeepSpeed is told.
        fsdp_plugin: None: the Lightning strategy holds what FSDP is told.
        parallelism_config: None: the Lightning strategy splits the work.
        gradient_accumulation_steps: 1: the trainer counts accumulation windows itself, as under accelerate.
    """

    deepspeed_plugin = None
    fsdp_plugin = None
    parallelism_config = None
    gradient_accumulation_steps = 1

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of this process."""

    @property
    @abstractmethod
    def num_processes(self) -> int:
        """Processes of the run."""

    @property
    @abstractmethod
    def process_index(self) -> int:
        """Rank of this process among all."""

    @property
    @abstractmethod
    def is_main_process(self) -> bool:
        """Whether this is the first process of all."""

    @property
    @abstractmethod
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""

    @property
    @abstractmethod
    def is_last_process(self) -> bool:
        """Whether this is the last process of all."""

    @property
    @abstractmethod
    def precision_plugin(self) -> Any:
        """Lightning's precision of the run."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"`accelerator.{name}` is not offered here, where Lightning stands in for accelerate; look for it on "
            "`trainer.lightning_trainer` and its `strategy`."
        )

    # Facts

    @property
    def state(self) -> "AcceleratorSurface":
        """What accelerate keeps in a state of its own; the same facts are here."""
        return self

    @property
    def gradient_state(self) -> "AcceleratorSurface":
        """Where accelerate keeps ``sync_gradients``."""
        return self

    @property
    def distributed_type(self) -> str:
        """The value that ``accelerate.DistributedType`` has for the run, which compares equal to it."""
        if self.num_processes == 1:
            return "NO"
        return "MULTI_GPU" if self.device.type == "cuda" else "MULTI_CPU"

    @property
    def use_distributed(self) -> bool:
        """Whether several processes train together."""
        return self.num_processes > 1

    @property
    def mixed_precision(self) -> str:
        """``"bf16"``, ``"fp16"`` or ``"no"``."""
        precision = str(self.precision_plugin.precision)
        return {"bf16-mixed": "bf16", "16-mixed": "fp16"}.get(precision, "no")

    @property
    def scaler(self) -> Any:
        """The gradient scaler of the run's precision, if it has one."""
        return getattr(self.precision_plugin, "scaler", None)

    # Turns

    def on_main_process(self, function: _Function) -> _Function:
        """Make ``function`` run on the first process of all only."""
        return _only_where(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: _Function) -> _Function:
        """Make ``function`` run on the first process of each machine only."""
        return _only_where(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: _Function) -> _Function:
        """Make ``function`` run on the last process only."""
        return _only_where(lambda: self.is_last_process, function)

    def on_process(self, function: _Function | None = None, process_index: int | None = None) -> Any:
        """Make ``function`` run on the process ``process_index`` only."""
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return _only_where(lambda: self.process_index == process_index, function)

    # Work

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Return no context: the trainer accumulates."""
        return nullcontext()

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip each gradient to ``[-clip_value, clip_value]``."""
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the weights of ``model``."""
        return dict(model.state_dict())

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Write ``obj`` to the file ``f``, from one process.

        Args:
            obj: Anything picklable; weights by name with ``safe_serialization``.
            f: Path.
            safe_serialization: Write safetensors.
        """
        if not self.is_main_process:
            return
        if safe_serialization:
            from safetensors.torch import save_file

            save_file(obj, f, metadata={"format": "pt"})
        else:
            torch.save(obj, f)


def _only_where(is_here: Callable[[], bool], function: _Function) -> _Function:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if is_here() else None

    return run
