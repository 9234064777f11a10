"""``trainer.accelerator``, without accelerate; :mod:`portico.distributed.settings` reads its settings."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, cast

import safetensors.torch
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader

from portico.compat.accelerate import (
    GradientState,
    get_distributed_type,
    get_mixed_precision,
    num_processes,
    share_precision,
)
from portico.compat.tree import map_tensors, pad_to_longest
from portico.data.loaders import prepare_data_loader, skip_first_batches
from portico.data.sharding import DataLoaderConfig
from portico.distributed.model_parallel import clip_grad_norm_, full_tensor, is_sharded, without_reduction
from portico.distributed.processes import all_gather, all_gather_several, connect, disconnect, first_process_first
from portico.distributed.sequence import UNSHARED, Sharing
from portico.trust.disk import replaced
from portico.trust.files import save_tensors

if TYPE_CHECKING:
    from lightning.pytorch.plugins import Precision
    from lightning.pytorch.strategies import Strategy
    from torch.distributed import ProcessGroup

    from portico.compat.annotations import Loader, Nested


_CHECKPOINTS = "set `save_strategy` and `resume_from_checkpoint`, and save more in a callback's `on_save`"
_PLACEMENT = "choose a Lightning `strategy` in the training arguments"
_TRACKERS = "set `report_to`, and call `trainer.log`"
_ELSEWHERE = "look for it on `trainer.lightning_trainer` and its `strategy`"

# Public names of `accelerate.Accelerator` and its states that are not offered, and what to do instead.
REFUSED: Mapping[str, str] = {
    "ddp_handler": "set `ddp_find_unused_parameters` and the other arguments whose names start with `ddp_`",
    "context_parallel_rank": _PLACEMENT,
    "data_parallel_rank": _PLACEMENT,
    "data_parallel_shard_rank": _PLACEMENT,
    "deepspeed_ulysses_dl_adapter": _PLACEMENT,
    "get_deepspeed_plugin": _PLACEMENT,
    "get_tracker": _TRACKERS,
    "init_trackers": _TRACKERS,
    "join_uneven_inputs": "leave `even_batches` of `accelerator_config` true, so that all processes get equally many",
    "load_state": _CHECKPOINTS,
    "log": _TRACKERS,
    "lomo_backward": "set `optim='lomo'`, or 'adalomo'",
    "pipeline_parallel_rank": _PLACEMENT,
    "profile": "run `trainer.train()` inside `torch.profiler.profile()`",
    "project_configuration": _CHECKPOINTS,
    "register_for_checkpointing": _CHECKPOINTS,
    "register_load_state_pre_hook": _CHECKPOINTS,
    "register_save_state_pre_hook": _CHECKPOINTS,
    "save_model": "call `trainer.save_model`",
    "save_state": _CHECKPOINTS,
    "select_deepspeed_plugin": _PLACEMENT,
    "set_device": _PLACEMENT,
    "tensor_parallel_rank": _PLACEMENT,
    "trigger_sync_in_backward": "run the last backward of a window outside `no_sync`",
    "unscale_gradients": "read the gradients in a callback's `on_pre_optimizer_step`, where they are unscaled",
}

_Function = Callable[..., object]
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
_WRAPPERS = (DataParallel, DistributedDataParallel, FullyShardedDataParallel)


def _delegate_to_config(name: str) -> property:
    return property(
        lambda accelerator: getattr(accelerator.dataloader_config, name),
        lambda accelerator, value: setattr(accelerator.dataloader_config, name, value),
    )


@dataclass(frozen=True)
class SequenceParallelism:
    """What user code reads of accelerate's ``ParallelismConfig`` to find out whether sequences are split.

    trl's ``SFTTrainer`` then takes the loss from ``Trainer.compute_loss``, which sums the parts of the processes. It
    does so for the exchange of heads, whose backend is called after DeepSpeed there. A run with ``cp_size`` says the
    same, since its loss is computed in the same way.
    """

    sp_size: int
    sp_enabled: ClassVar = True
    sp_backend: ClassVar = "deepspeed"
    tp_size: ClassVar = 1
    cp_size: ClassVar = 1
    tp_enabled: ClassVar = False
    cp_enabled: ClassVar = False


class Accelerator:
    """What user code calls as ``trainer.accelerator``: the surface of ``accelerate.Accelerator``, without accelerate.

    Each answer comes from the Lightning strategy of the current run, which ``strategy`` returns. Arguments of
    accelerate's constructor that are not in the trainer's ``accelerator_config`` have accelerate's defaults.

    Attributes:
        dataloader_config: How loaders are prepared from now on; may be changed.
        optimizer_step_was_skipped: Whether the last optimizer step was skipped (overflow under ``fp16``).
        run_backward: What :meth:`backward` calls: ``torch.Tensor.backward`` outside a training run.
    """

    # The Lightning strategy configures DeepSpeed and FSDP, and splits the work.
    deepspeed_plugin = fsdp_plugin = megatron_lm_plugin = torch_device_mesh = None
    is_fsdp2 = is_composable_parallelism_enabled = False
    autocast_handler = init_handler = profile_handler = scaler_handler = None
    ao_recipe_handler = fp8_recipe_handler = msamp_recipe_handler = te_recipe_handler = None
    fp8_backend = "NO"
    fp8_enabled = has_fp8_handler = delayed_fp8_autocast = has_lomo_optimizer = use_stateful_dataloader = False
    project_dir = logging_dir = None
    step = save_iteration = 0
    rng_types = ("generator",)
    # As under accelerate, they apply to loaders that are prepared after they are set.
    split_batches = _delegate_to_config("split_batches")
    dispatch_batches = _delegate_to_config("dispatch_batches")
    even_batches = _delegate_to_config("even_batches")
    use_seedable_sampler = _delegate_to_config("use_seedable_sampler")
    non_blocking = _delegate_to_config("non_blocking")
    log_with = trackers = ()
    device_placement = step_scheduler_with_optimizer = initialized = True
    debug = fork_launched = False

    def __init__(self, strategy: "Callable[[], Strategy]", dataloader_config: DataLoaderConfig | None = None) -> None:
        self._strategy = strategy
        self.dataloader_config = dataloader_config or DataLoaderConfig()
        self.flag_tensor: torch.Tensor | None = None
        self.run_backward: Callable[..., None] = torch.Tensor.backward
        self.optimizer_step_was_skipped = False
        self.gradient_state = GradientState()

    def start(self, accumulation: Mapping[str, Any] | None) -> None:
        """Begin with an open window, and describe the run to accelerate if it is installed.

        ``accumulation`` is ``gradient_accumulation_kwargs`` of ``accelerator_config``.
        """
        share_precision(self.mixed_precision)
        self.gradient_state = GradientState(accumulation or {})

    # ---- Processes ----

    @property
    def device(self) -> torch.device:
        return self._strategy().root_device

    default_device = device

    @property
    def num_processes(self) -> int:
        return num_processes(self._strategy())

    @property
    def process_index(self) -> int:
        return int(getattr(self._strategy(), "global_rank", 0))

    @property
    def local_process_index(self) -> int:
        return int(getattr(self._strategy(), "local_rank", 0))

    @property
    def data_parallel_size(self) -> int:
        """Number of processes, or groups of processes that read the same batches, that train on different examples."""
        return num_processes(self._strategy()) // self.processes_per_batch

    @property
    def processes_per_batch(self) -> int:
        """Number of processes in a row that read the same batches: they share each layer, or each sequence."""
        strategy = self._strategy()
        sharing: Sharing = getattr(strategy, "sequence_sharing", UNSHARED)
        return int(getattr(strategy, "tensor_parallel_size", 1)) * sharing.size

    @property
    def parallelism_config(self) -> SequenceParallelism | None:
        """The sizes of a run that splits sequences, ``None`` for any other run."""
        size = getattr(self._strategy(), "sequence_sharing", UNSHARED).size
        return SequenceParallelism(size) if size > 1 else None

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    should_save_model = is_local_main_process

    @property
    def is_last_process(self) -> bool:
        return self.process_index == self.num_processes - 1

    def print(self, *args: object, **kwargs: Any) -> None:
        """Print on the first process of each machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    # ---- Waiting ----

    def wait_for_everyone(self) -> None:
        self._connect_strategy().barrier("wait_for_everyone")

    def main_process_first(self) -> AbstractContextManager[None]:
        """Let the first process of all run the block before the others."""
        return first_process_first(self._connect_strategy(), is_first=self.is_main_process)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Let the first process of each machine run the block before the others."""
        return first_process_first(self._connect_strategy(), is_first=self.is_local_main_process)

    def end_training(self, group: "ProcessGroup | None" = None) -> None:
        """Destroy the process group. Call at the end of a script."""
        disconnect()

    destroy_process_group = end_training

    # ---- Results of several processes ----

    def from_first_process(self, data: "Nested") -> Any:
        """Return the first process's ``data``, any object that pickles, on every process."""
        return data if self.num_processes == 1 else self._connect_strategy().broadcast(data)

    def gather(self, tensor: "Nested") -> Any:
        """Concatenate a tensor of every process along dimension 0, in the order of the processes.

        Processes that read the same batches have the same tensor, which is taken once, also in other collectives.

        Args:
            tensor: Tensor ``[batch, ...]``, or several nested in dicts, lists and tuples; of the same shape in every
                process (:meth:`pad_across_processes`) and of any dtype. A scalar counts as ``[1]``.

        Returns:
            Tensor ``[num_processes * batch, ...]`` on this process's device, the same in every process, without
            gradients; with one process ``tensor`` itself.

        Source: ``Accelerator.gather`` in accelerate 1.15.
        """
        if self.num_processes == 1:
            return tensor
        strategy = self._connect_strategy()
        once = slice(None, None, self.processes_per_batch)
        items: list[torch.Tensor] = []
        map_tensors(lambda item: items.append(torch.atleast_1d(item)), tensor)
        gathered = iter(all_gather_several(strategy, items))
        return map_tensors(lambda item: next(gathered)[once].flatten(0, 1), tensor)

    def gather_object(self, data: "Nested") -> Any:
        """Concatenate the lists of every process; on one process, return ``data`` unchanged."""
        if self.num_processes == 1:
            return data
        self._connect_strategy()
        gathered: list[Any] = [None] * self.num_processes
        torch.distributed.all_gather_object(gathered, data)
        return [item for items in gathered[:: self.processes_per_batch] for item in items]

    def gather_for_metrics(self, input_data: "Nested", use_gather_object: bool = False) -> Any:
        """Gather, and drop the repeated examples that complete the last batch of the running evaluation.

        Args:
            input_data: Nested tensors ``[batch, ...]``, as for :meth:`gather`.
            use_gather_object: Take a list of objects that pickle instead; tensors may then differ in shape.

        Returns:
            Tensors ``[examples, ...]``; in the last batch only as many examples as the dataset still has.

        Source: ``Accelerator.gather_for_metrics`` in accelerate 1.15.
        """
        as_objects = use_gather_object or not (isinstance(input_data, torch.Tensor) or _all_tensors(input_data))
        gathered = input_data
        if self.num_processes > 1:
            gathered = self.gather_object(input_data) if as_objects else self.gather(input_data)
        # No early return for a single process: losses are repeated to a full batch, and the last one is smaller.
        loader = self.gradient_state.active_dataloader
        remainder = loader.remainder if loader is not None and loader.end_of_dataloader else -1
        if remainder <= 0:
            return gathered
        if as_objects:
            return gathered if isinstance(gathered, Mapping) else gathered[:remainder]
        # A scalar does not belong to an example.
        return map_tensors(lambda tensor: tensor[:remainder] if tensor.dim() else tensor, gathered)

    def gathers_tensors(self, gather: Callable[..., Any], data: "Nested") -> bool:
        """Return whether ``gather`` is :meth:`gather_for_metrics` and takes ``data`` as tensors, not as objects."""
        options = getattr(gather, "keywords", {})
        function = gather.func if isinstance(gather, functools.partial) else gather
        takes_tensors = not options.get("use_gather_object", False) and _all_tensors(data)
        return function == self.gather_for_metrics and takes_tensors

    def pad_across_processes(self, tensor: "Nested", dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Pad a tensor along ``dim`` to the greatest size in any process.

        Args:
            tensor: Tensor, or several nested in dicts, lists and tuples.
            dim: Dimension to pad; tensors without it are returned as they are.
            pad_index: Value of the padding, such as -100 for labels.
            pad_first: Pad at the beginning instead of the end.

        Returns:
            Tensors of the same shape in every process, ready to :meth:`gather`.
        """
        if self.num_processes == 1:
            return tensor
        gather = functools.partial(all_gather, self._connect_strategy())
        return pad_to_longest(gather, tensor, dim=dim, pad_index=pad_index, pad_first=pad_first)

    def reduce(self, tensor: "Nested", reduction: str = "sum", scale: float = 1.0) -> Any:
        """Reduce a tensor over all processes.

        Args:
            tensor: Tensor of the same shape in every process, or several nested in dicts, lists and tuples.
            reduction: ``"sum"``, ``"mean"`` or ``"max"``.
            scale: No effect: accelerate uses it on TPUs only.

        Returns:
            Tensors of the same shape and dtype, the same in every process.
        """
        if self.num_processes == 1:
            return tensor
        strategy = self._connect_strategy()
        copies = self.processes_per_batch if reduction == "sum" else 1
        reduced = map_tensors(lambda item: strategy.reduce(item.clone(), reduce_op=reduction), tensor)
        return reduced if copies == 1 else map_tensors(lambda item: (item / copies).to(item.dtype), reduced)

    def _connect_strategy(self) -> "Strategy":
        strategy = self._strategy()
        connect(strategy)
        return strategy

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"`accelerator.{name}` is not available: portico runs on Lightning instead of accelerate; "
            f"{REFUSED.get(name, _ELSEWHERE)}."
        )

    # ---- What accelerate keeps in other objects ----

    @property
    def state(self) -> "Accelerator":
        """The accelerator itself, which has the attributes that accelerate keeps in a separate state."""
        return self

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch being trained on closes its accumulation window."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """What :meth:`backward` divides a loss by: 1 unless it was set, since the trainer counts the windows."""
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self.gradient_state.plugin_kwargs["num_steps"] = value

    @property
    def distributed_type(self) -> str:
        return get_distributed_type(self._strategy())

    @property
    def multi_device(self) -> bool:
        return self.use_distributed and self.device.type == "cuda"

    @property
    def backend(self) -> str | None:
        """Name of the process group's backend, once the processes are connected."""
        connected = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.distributed.get_backend() if connected else None

    @property
    def use_distributed(self) -> bool:
        return self.num_processes > 1

    @property
    def mixed_precision(self) -> str:
        """``"bf16"``, ``"fp16"`` or ``"no"``."""
        return get_mixed_precision(self._strategy())

    @property
    def native_amp(self) -> bool:
        return self.mixed_precision != "no"

    @property
    def scaler(self) -> Any:
        return getattr(self._strategy().precision_plugin, "scaler", None)

    @property
    def may_skip_steps(self) -> bool:
        """Whether a step is skipped when a gradient overflows."""
        return self.scaler is not None or getattr(self._strategy(), "skips_on_overflow", False)

    def on_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Make ``function`` run on the first process of all only."""
        return _only_where(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Make ``function`` run on the first process of each machine only."""
        return _only_where(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Make ``function`` run on the last process only."""
        return _only_where(lambda: self.is_last_process, function)

    def on_process(self, function: _Function | None = None, process_index: int | None = None) -> Any:
        """Make ``function`` run on the process ``process_index`` only."""
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return _only_where(lambda: self.process_index == process_index, function)

    def on_local_process(
        self, function: Callable[..., object] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Make ``function`` run on the process ``local_process_index`` of each machine only."""
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        return _only_where(lambda: self.local_process_index == local_process_index, function)

    @contextmanager
    def split_between_processes(self, inputs: T, apply_padding: bool = False) -> Iterator[T]:
        """Yield this process's part of a sequence, a tensor, a ``datasets.Dataset`` or a dict of them.

        If the division leaves a remainder, the first processes get one more element; with ``apply_padding`` the other
        processes repeat the last element.
        """
        yield inputs if self.num_processes == 1 else self._part_of(inputs, apply_padding)

    def _part_of(self, inputs: Any, apply_padding: bool) -> Any:
        if isinstance(inputs, Mapping):
            lengths = {name: len(values) for name, values in inputs.items()}
            if len(set(lengths.values())) > 1:
                raise ValueError(f"All values in the dictionary must have the same length; they have {lengths}.")
            return {name: self._part_of(values, apply_padding) for name, values in inputs.items()}
        size, extra = divmod(len(inputs), self.num_processes)
        start = self.process_index * size + min(self.process_index, extra)
        indices = list(range(start, start + size + (self.process_index < extra)))
        if apply_padding:
            indices += [len(inputs) - 1] * (size + bool(extra) - len(indices))
        if isinstance(inputs, torch.Tensor):
            return inputs[indices].to(self.device) if apply_padding else inputs[indices]
        if hasattr(inputs, "select"):
            return inputs.select(indices)
        return type(inputs)(inputs[index] for index in indices)

    def set_trigger(self) -> None:
        """Make the next :meth:`check_trigger` of all processes return true."""
        self.flag_tensor = torch.tensor(1, device=self.device)

    def check_trigger(self) -> bool:
        """Return whether any process has called :meth:`set_trigger` since the last check. All processes call this."""
        own = torch.tensor(0, device=self.device) if self.flag_tensor is None else self.flag_tensor
        self.flag_tensor = None
        return bool(self.reduce(own) > 0)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Return an empty context: the trainer accumulates."""
        return nullcontext()

    def clip_grad_value_(self, parameters: "torch.Tensor | Iterable[torch.Tensor]", clip_value: float) -> None:
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the weights; for a sharded model, all on the CPU in the first process and none in the others."""
        state = dict(model.state_dict())
        if not is_sharded(model):
            return state
        gathered: dict[str, Any] = {}
        for name, tensor in state.items():
            full = full_tensor(tensor.detach())
            if self.is_main_process:
                gathered[name] = full.cpu()
        return gathered

    def save(self, obj: object, f: "str | PathLike[str] | IO[bytes]", safe_serialization: bool = False) -> None:
        """Write ``obj`` to the path or open file ``f``, from one process; ``safe_serialization`` needs a dict."""
        if not self.is_main_process:
            return
        if not isinstance(f, str | PathLike):
            torch.save(obj, f)  # a file that is open
        elif safe_serialization:
            with replaced(Path(f)) as staging:
                safetensors.torch.save_file(cast("dict[str, torch.Tensor]", obj), staging, metadata={"format": "pt"})
        else:
            save_tensors(obj, Path(f))

    @property
    def precision_plugin(self) -> "Precision":
        """Lightning's precision plugin of the run."""
        return self._strategy().precision_plugin

    # ---- Gradients ----

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run backward on ``loss``; in a training run as :class:`portico.loop.module.BackwardPass` says."""
        num_steps = self.gradient_state.num_steps
        self.run_backward(loss if num_steps == 1 else loss / num_steps, **kwargs)

    def clip_grad_norm_(
        self, parameters: "torch.Tensor | Iterable[torch.Tensor]", max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Scale gradients down so that their total norm is at most ``max_norm``, and return the norm before scaling.

        Args:
            parameters: Parameters of the model; the order of their sum decides the last bits of the norm.
            max_norm: Largest norm; infinity only measures.
            norm_type: 2 for the Euclidean norm.

        Returns:
            A ``float32`` scalar: the norm over all parameters, including parameters sharded over processes.
        """
        strategy = self._strategy()
        if hasattr(strategy, "norm_of_clipped_gradients"):
            return strategy.norm_of_clipped_gradients()
        model = getattr(strategy, "model", None)
        if isinstance(model, FullyShardedDataParallel):
            # Each process has only a part of the gradients.
            return model.clip_grad_norm_(max_norm, norm_type)
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if DTensor in set(map(type, parameters)):
            return clip_grad_norm_(parameters, max_norm, norm_type)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def maybe_context_parallel(self, *args: object, **kwargs: object) -> AbstractContextManager[None]:
        """Return an empty context: the model itself splits its inputs, see :mod:`portico.distributed.sequence`."""
        return nullcontext()

    def no_sync(self, model: nn.Module | None = None) -> AbstractContextManager[Any]:
        """Inside the block, do not average the gradients of ``model`` over the processes."""
        if isinstance(model, FSDPModule):
            return without_reduction(model)
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the forward context of the run's precision."""
        return self.precision_plugin.forward_context()

    # ---- Models and data ----

    def prepare(self, *objects: object, **kwargs: object) -> Any:
        """Prepare data loaders; models and optimizers are returned unchanged, since the strategy prepares them."""
        config = replace(
            self.dataloader_config,
            device=self.device,
            num_processes=self.data_parallel_size,
            process_index=self.process_index // self.processes_per_batch,
            broadcast=self.from_first_process,
            gather=self.gather_object,
        )
        prepared = [prepare_data_loader(obj, config) if isinstance(obj, DataLoader) else obj for obj in objects]
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def prepare_data_loader(self, data_loader: "Loader", *args: object, **kwargs: object) -> Any:
        return self.prepare(data_loader)

    def prepare_optimizer(self, optimizer: T, device_placement: bool | None = None) -> T:
        """Return ``optimizer``: the strategy prepares it."""
        return optimizer

    def prepare_scheduler(self, scheduler: T) -> T:
        """Return ``scheduler``: the trainer steps it."""
        return scheduler

    def skip_first_batches(self, dataloader: "Loader", num_batches: int = 0) -> Any:
        return skip_first_batches(dataloader, num_batches)

    def prepare_model(self, model: nn.Module, **kwargs: object) -> nn.Module:
        """Return ``model``: the strategy prepares it."""
        return model

    def unwrap_model(self, model: nn.Module, *args: object, **kwargs: object) -> nn.Module:
        """Return the model inside distributed or compiled wrappers."""
        while True:
            # Wrappers are known by their class: a user's model may have a part with the name `module`.
            is_wrapper = isinstance(model, _WRAPPERS) or model is getattr(self._strategy(), "wrapped_model", None)
            inner = model.module if is_wrapper else getattr(model, "_orig_mod", None)
            if not isinstance(inner, nn.Module):
                return model
            model = inner

    def verify_device_map(self, model: nn.Module) -> bool:
        """Return whether ``from_pretrained(device_map=...)`` placed parts of ``model`` on several devices."""
        return any(len(getattr(module, "hf_device_map", None) or ()) > 1 for module in model.modules())

    def free_memory(self, *objects: object) -> list[None]:
        """Return ``None`` for each object; the strategy releases memory when a run ends."""
        return [None] * len(objects)

    clear = free_memory


def _all_tensors(data: "Nested") -> bool:
    if isinstance(data, torch.Tensor):
        return True
    if isinstance(data, Mapping | list | tuple):
        return all(map(_all_tensors, data.values() if isinstance(data, Mapping) else data))
    return False


def _only_where(is_here: Callable[[], bool], function: Callable[P, R]) -> Callable[P, R | None]:
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return function(*args, **kwargs) if is_here() else None

    return run
