"""``trainer.accelerator`` and its settings, ``TrainingArguments.accelerator_config``; accelerate is not needed."""

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, is_dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from portico.data.loaders import DataLoaderShard, prepare_data_loader, skip_first_batches
from portico.data.sharding import DataLoaderConfig
from portico.distributed.processes import all_gather, connect, disconnect, first_process_first
from portico.errors import InputError
from portico.hf_compat import AcceleratorConfig
from portico.lightning_compat import launches_workers
from portico.tree import map_tensors, pad_to_longest

if TYPE_CHECKING:
    from lightning.pytorch.plugins import Precision
    from lightning.pytorch.strategies import Strategy

    from portico.annotations import Loader, Nested
    from portico.arguments import TrainingArguments


_FIELDS: Mapping[str, Any] = AcceleratorConfig().to_dict()
_ACCUMULATION = ("num_steps", "sync_each_batch", "adjust_scheduler", "sync_with_dataloader")


def accelerator_settings(args: "TrainingArguments") -> dict[str, Any]:
    """Return every field of ``args.accelerator_config``, which is an object, a dict, a JSON file's path or None."""
    config = args.accelerator_config
    if is_dataclass(config) and not isinstance(config, type):
        config = asdict(config)
    elif isinstance(config, str):
        config = json.loads(Path(config).read_text(encoding="utf-8"))
    given = dict(config or {})
    _refuse_unknown("`accelerator_config`", given, _FIELDS)
    return {**_FIELDS, **given}


def _refuse_unknown(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given).difference(known))
    if unknown:
        raise InputError(f"{where} has no field {', '.join(unknown)}; it has {', '.join(known)}: use only those.")


def dataloader_config(args: "TrainingArguments") -> dict[str, Any]:
    """Return the options of ``DataLoaderConfig`` that ``accelerator_config`` sets."""
    settings = accelerator_settings(args)
    options = {name: settings[name] for name in ("split_batches", "dispatch_batches", "even_batches", "non_blocking")}
    return {**options, "seeded_order": settings["use_seedable_sampler"], "data_seed": args.data_seed}


def apply_accelerator_settings(args: "TrainingArguments") -> None:
    """Apply the accumulation steps that ``accelerator_config`` sets; refuse what contradicts the run."""
    settings = accelerator_settings(args)
    accumulation = settings["gradient_accumulation_kwargs"] or {}
    if settings["use_configured_state"]:
        raise InputError(
            "`accelerator_config={'use_configured_state': True}` reuses the processes of an `Accelerator` made "
            "before, but Lightning makes the processes of this run; leave it out, and set `strategy`, `devices` and "
            "`accelerator` in `portico.TrainingArguments`."
        )
    _refuse_unknown("`gradient_accumulation_kwargs` in `accelerator_config`", accumulation, _ACCUMULATION)
    if args.gradient_accumulation_steps not in (1, accumulation.get("num_steps", args.gradient_accumulation_steps)):
        raise InputError(
            f"Both `gradient_accumulation_steps={args.gradient_accumulation_steps}` and `num_steps="
            f"{accumulation['num_steps']}` in `accelerator_config` set the accumulation; set one of them."
        )
    if "num_steps" in accumulation:
        args.gradient_accumulation_steps = accumulation["num_steps"]


def share_state_with_accelerate(args: "TrainingArguments") -> None:
    """Set up the global state of accelerate, if a library has imported it: trl asks it which process this is."""
    # It would make a process group of its own where there is none yet.
    is_connected = args.world_size == 1 or torch.distributed.is_initialized()
    if "accelerate" in sys.modules and is_connected and not import_module("accelerate.state").is_initialized():
        import_module("accelerate").Accelerator(cpu=args.device.type == "cpu", mixed_precision="no")


_Function = Callable[..., Any]
_WRAPPERS = (DataParallel, DistributedDataParallel, FullyShardedDataParallel)


class Accelerator:
    """What user code calls as ``trainer.accelerator``: the surface of ``accelerate.Accelerator``, without accelerate.

    Each answer comes from the Lightning strategy of the current run, which ``strategy`` returns; prepared loaders get
    the ``dataloader_options`` (of ``DataLoaderConfig``).

    Attributes:
        sync_gradients: Whether the batch being trained on closes its accumulation window.
        optimizer_step_was_skipped: Whether the last optimizer step was left out (overflow under ``fp16``).
        backward_now: What :meth:`backward` calls at once; ``None`` while Lightning runs backward.
    """

    # The Lightning strategy configures DeepSpeed and FSDP, and splits the work.
    deepspeed_plugin = None
    fsdp_plugin = None
    parallelism_config = None
    # The trainer counts accumulation windows itself, as transformers does under accelerate.
    gradient_accumulation_steps = 1

    def __init__(
        self, strategy: "Callable[[], Strategy]", dataloader_options: Mapping[str, Any] | None = None
    ) -> None:
        self._strategy = strategy
        self._dataloader_options = dict(dataloader_options or {})
        # Loaders that are being iterated; the last one is the innermost evaluation's.
        self._loaders: list[DataLoaderShard] = []
        self._deferred: torch.Tensor | None = None
        self.backward_now: Callable[..., None] | None = torch.Tensor.backward
        self.sync_gradients = True
        self.optimizer_step_was_skipped = False

    # Processes

    @property
    def device(self) -> torch.device:
        return self._strategy().root_device

    @property
    def num_processes(self) -> int:
        """Processes of the run; one between calls for a strategy that launches workers for each call."""
        strategy = self._strategy()
        num_processes: int = getattr(strategy, "world_size", 1)
        return 1 if num_processes == 1 or launches_workers(strategy) else num_processes

    @property
    def process_index(self) -> int:
        return int(getattr(self._strategy(), "global_rank", 0))

    @property
    def local_process_index(self) -> int:
        return int(getattr(self._strategy(), "local_rank", 0))

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        return self.process_index == self.num_processes - 1

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    # Waiting

    def wait_for_everyone(self) -> None:
        self._connected().barrier("wait_for_everyone")

    def main_process_first(self) -> AbstractContextManager[None]:
        """Let the first process of all run the block before the others."""
        return first_process_first(self._connected(), is_first=self.is_main_process)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Let the first process of each machine run the block before the others."""
        return first_process_first(self._connected(), is_first=self.is_local_main_process)

    def end_training(self) -> None:
        """Destroy the process group. Call at the end of a script."""
        disconnect()

    # Results of several processes

    def from_first_process(self, data: "Nested") -> Any:
        """Return the first process's ``data``, any object that pickles, on every process."""
        return data if self.num_processes == 1 else self._connected().broadcast(data)

    def gather(self, tensor: "Nested") -> Any:
        """Concatenate a (nested) tensor of every process along dimension 0."""
        if self.num_processes == 1:
            return tensor
        strategy = self._connected()
        return map_tensors(lambda item: all_gather(strategy, torch.atleast_1d(item)).flatten(0, 1), tensor)

    def gather_object(self, data: "Nested") -> Any:
        """Concatenate the lists of every process; on one process, return ``data`` unchanged."""
        if self.num_processes == 1:
            return data
        self._connected()
        gathered: list[Any] = [None] * self.num_processes
        torch.distributed.all_gather_object(gathered, data)
        return [item for items in gathered for item in items]

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather, and drop the examples that fill up the last batch of the evaluation that is running.

        Data are nested tensors or, with ``use_gather_object``, objects in a list: tensors may then differ in shape.
        """
        as_objects = use_gather_object or not _all_tensors(input_data)
        gathered = self.gather_object(input_data) if as_objects else self.gather(input_data)
        # No early return for a single process: losses are repeated to a full batch, and the last one is smaller.
        loader = self._loaders[-1] if self._loaders else None
        if loader is None or not loader.end_of_dataloader or loader.remainder <= 0:
            return gathered
        if as_objects:
            return gathered if isinstance(gathered, Mapping) else gathered[: loader.remainder]
        # A scalar belongs to no example.
        return map_tensors(lambda tensor: tensor[: loader.remainder] if tensor.dim() else tensor, gathered)

    def pad_across_processes(self, tensor: "Nested", dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Pad a (nested) tensor along ``dim`` to the longest of all processes."""
        if self.num_processes == 1:
            return tensor
        gather = functools.partial(all_gather, self._connected())
        return pad_to_longest(gather, tensor, dim=dim, pad_index=pad_index, pad_first=pad_first)

    def reduce(self, tensor: "Nested", reduction: str = "sum", scale: float = 1.0) -> Any:
        """Reduce a (nested) tensor over all processes by ``"sum"``, ``"mean"`` or ``"max"``.

        ``scale`` has no effect: accelerate uses it on TPUs only.
        """
        if self.num_processes == 1:
            return tensor
        strategy = self._connected()
        return map_tensors(lambda item: strategy.reduce(item.clone(), reduce_op=reduction), tensor)

    @contextmanager
    def iterating(self, loader: DataLoaderShard) -> Iterator[None]:
        """While ``loader`` is iterated, let :meth:`gather_for_metrics` read the size of its last batch."""
        self._loaders.append(loader)
        try:
            yield
        finally:
            # Not always the last one: an abandoned generator may be closed late.
            self._loaders.remove(loader)

    def _connected(self) -> "Strategy":
        strategy = self._strategy()
        connect(strategy)
        return strategy

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"`accelerator.{name}` is not available: portico runs on Lightning instead of accelerate; look for it on "
            "`trainer.lightning_trainer` and its `strategy`."
        )

    # What accelerate keeps in other objects

    @property
    def state(self) -> "Accelerator":
        """The accelerator itself, which has what accelerate keeps in a separate state."""
        return self

    gradient_state = state

    @property
    def distributed_type(self) -> str:
        """The value that ``accelerate.DistributedType`` has for the run, which compares equal to it."""
        if self.num_processes == 1:
            return "NO"
        return "MULTI_GPU" if self.device.type == "cuda" else "MULTI_CPU"

    @property
    def use_distributed(self) -> bool:
        return self.num_processes > 1

    @property
    def mixed_precision(self) -> str:
        """``"bf16"``, ``"fp16"`` or ``"no"``."""
        precision = str(self.precision_plugin.precision)
        return {"bf16-mixed": "bf16", "16-mixed": "fp16"}.get(precision, "no")

    @property
    def scaler(self) -> Any:
        return getattr(self.precision_plugin, "scaler", None)

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

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Return an empty context: the trainer accumulates."""
        return nullcontext()

    def clip_grad_value_(self, parameters: "torch.Tensor | Iterable[torch.Tensor]", clip_value: float) -> None:
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        return dict(model.state_dict())

    def save(self, obj: Any, f: "str | PathLike[str]", safe_serialization: bool = False) -> None:
        """Write ``obj`` to the file ``f``, from one process; with ``safe_serialization`` it holds weights by name."""
        if self.is_main_process and safe_serialization:
            safetensors.torch.save_file(obj, f, metadata={"format": "pt"})
        elif self.is_main_process:
            torch.save(obj, f)

    @property
    def precision_plugin(self) -> "Precision":
        """Lightning's precision of the run."""
        return self._strategy().precision_plugin

    # Gradients

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run backward on ``loss``: deferred to Lightning in a run; at once outside, or in an overridden step."""
        if self.backward_now is not None:
            self.backward_now(loss, **kwargs)
        elif self._deferred is not None:
            raise RuntimeError(
                "`accelerator.backward` was called twice in one `training_step`; override `training_step` in a "
                "subclass to run several backward passes."
            )
        else:
            self._deferred = loss

    def take_deferred_loss(self) -> torch.Tensor:
        """Hand the loss of the last :meth:`backward` to Lightning, which runs backward through the strategy."""
        loss, self._deferred = self._deferred, None
        if loss is None:
            raise RuntimeError(
                "`training_step` did not call `accelerator.backward`, so there is no loss to differentiate."
            )
        return loss

    def clip_grad_norm_(
        self, parameters: "torch.Tensor | Iterable[torch.Tensor]", max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Clip gradients to a norm and return the norm they had."""
        spread = getattr(self._strategy(), "model", None)
        if isinstance(spread, FullyShardedDataParallel):
            # Each process has a part of the gradients; their norm is that of all parts.
            return spread.clip_grad_norm_(max_norm, norm_type)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def no_sync(self, model: nn.Module | None = None) -> AbstractContextManager[Any]:
        """Keep the gradients of ``model``, if several processes train it, to this one inside the block."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the forward context of the run's precision."""
        return self.precision_plugin.forward_context()

    # Models and data

    def prepare(self, *objects: Any, **kwargs: Any) -> Any:
        """Prepare data loaders; models and optimizers are returned unchanged, since the strategy prepares them."""
        config = DataLoaderConfig(
            device=self.device,
            num_processes=self.num_processes,
            process_index=self.process_index,
            broadcast=self.from_first_process,
            **self._dataloader_options,
        )
        prepared = [prepare_data_loader(item, config) for item in objects]
        for loader in prepared:
            if isinstance(loader, DataLoaderShard):
                loader.announce = self.iterating
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def skip_first_batches(self, dataloader: "Loader", num_batches: int = 0) -> Any:
        return skip_first_batches(dataloader, num_batches)

    def prepare_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """Return ``model``: the strategy prepares it."""
        return model

    def unwrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        """Return the model inside distributed or compiled wrappers."""
        while True:
            # Wrappers are known by their kind: a user's own model may call any part of itself `module`.
            inner = model.module if isinstance(model, _WRAPPERS) else getattr(model, "_orig_mod", None)
            if not isinstance(inner, nn.Module):
                return model
            model = inner

    def free_memory(self, *objects: Any) -> None:
        """Do nothing: the strategy releases its memory when a run ends."""


def _all_tensors(data: "Nested") -> bool:
    if isinstance(data, torch.Tensor):
        return True
    if isinstance(data, Mapping | list | tuple):
        return all(map(_all_tensors, data.values() if isinstance(data, Mapping) else data))
    return False


def _only_where(is_here: Callable[[], bool], function: _Function) -> _Function:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if is_here() else None

    return run
