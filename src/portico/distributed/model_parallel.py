"""Models that are sharded over processes: by torch's ``fully_shard`` (FSDP2), by a ``tp_plan``, or both.

The processes form a mesh of replicas x shards x tensor-parallel ranks. Processes that differ in the last coordinate
train on the same examples; all others train on different examples.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, cast

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint as recompute_activations
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from typing_extensions import override

from portico.compat import transformers as hf_compat
from portico.compat.lightning import MeshStrategy, process_group_timeout
from portico.compat.releases import refuse_before
from portico.distributed.processes import device_mesh, limit_collectives
from portico.distributed.sequence import UNSHARED, Sharing, SplitSequences, split_sequences
from portico.errors import InputError

_AXES = ("replicate", "shard", "tensor")
_BY_LAYER = "TRANSFORMER_BASED_WRAP"
_BY_SIZE = "SIZE_BASED_WRAP"
_AS_ONE = "NO_WRAP"
WRAP_POLICIES = (_BY_LAYER, _BY_SIZE, _AS_ONE)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How ``fsdp_config`` shards a model; names and defaults are the same as in transformers."""

    auto_wrap_policy: str = _BY_LAYER
    transformer_layer_cls_to_wrap: frozenset[str] = frozenset()
    """Names of the layer classes that are gathered one at a time; by default the model's ``_no_split_modules``."""
    min_num_params: int = 0
    reshard_after_forward: bool = True
    cpu_offload: bool = False
    activation_checkpointing: bool = False

    def layers(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules that are sharded and gathered by themselves, inner ones first.

        Raises:
            InputError: If the model has none of the layer classes that are named.
        """
        inner = [module for module in model.modules() if module is not model]
        if self.auto_wrap_policy == _AS_ONE:
            return []
        if self.auto_wrap_policy == _BY_SIZE:
            sizes = {module: sum(parameter.numel() for parameter in module.parameters()) for module in inner}
            lists = (nn.ModuleList, nn.ModuleDict)
            least = max(self.min_num_params, 1)
            chosen = [module for module in inner if sizes[module] >= least and not isinstance(module, lists)]
        else:
            names = self.transformer_layer_cls_to_wrap or set(getattr(model, "_no_split_modules", None) or ())
            chosen = [module for module in inner if type(module).__name__ in names]
            missing = self.transformer_layer_cls_to_wrap - {type(module).__name__ for module in inner}
            if missing:
                raise InputError(
                    f"`transformer_layer_cls_to_wrap` in `fsdp_config` names {', '.join(sorted(missing))}, of which "
                    f"{type(model).__name__} has no layer; use {', '.join(_find_repeated(inner)) or 'none'}, or "
                    "leave it out."
                )
        return chosen[::-1]


class ShardedStrategy(MeshStrategy):
    """Lightning's ``ModelParallelStrategy`` that shards the user's model in place, as ``fsdp`` or a ``tp_plan`` says.

    Args:
        sharding: How the model is sharded.
        replicas: Copies of the sharded model (HSDP).
        shards: Processes that share a copy; by default all remaining processes.
        tensor_parallel_size: Processes that share each layer, by the model's ``tp_plan``.
        sequence_sharing: How many processes share each sequence; they are among the shards.
        sync_each_batch: Whether gradients are averaged after each batch of an accumulation window.
        is_alone_refused: Whether to refuse a run in one process, as transformers does under ``fsdp``.
        options: Further arguments of ``ModelParallelStrategy``; its ``data_parallel_size`` is ``shards``.
    """

    places_model = True  # in parts, over processes

    def __init__(
        self,
        sharding: Sharding | None = None,
        *,
        replicas: int = 1,
        shards: int | None = None,
        tensor_parallel_size: int | Literal["auto"] = 1,
        sequence_sharing: Sharing = UNSHARED,
        sync_each_batch: bool = False,
        is_alone_refused: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(tensor_parallel_size=tensor_parallel_size, **options)
        self.sharding = sharding or Sharding()
        self.sequence_sharing = sequence_sharing
        self._split: SplitSequences | None = None
        self.sync_each_batch = sync_each_batch
        self._replicas = replicas
        self._shards = shards
        self._is_alone_refused = is_alone_refused
        self._follows_lightning = "data_parallel_size" in options

    @property
    def mesh_shape(self) -> tuple[int, int, int]:
        """Replicas, shards and tensor-parallel ranks."""
        data, tensor = self.lightning_sizes
        if self._follows_lightning:
            return 1, data, tensor
        shards = self._shards or max(self.world_size // (self._replicas * tensor), 1)
        return self._replicas, shards, tensor

    @property
    def tensor_parallel_size(self) -> int:
        """How many processes train on the same examples."""
        return self.mesh_shape[2]

    @override
    def set_world_ranks(self) -> None:
        super().set_world_ranks()
        shape = self.mesh_shape
        if self._is_alone_refused and self.world_size == 1:
            raise InputError(
                "Using fsdp only works in distributed training. The run has one process; start several with "
                "`torchrun` or `devices`, or leave `fsdp` out."
            )
        if prod(shape) != self.world_size:
            sizes = " x ".join(f"{size} {axis}" for size, axis in zip(shape, _AXES, strict=True))
            raise InputError(
                f"The mesh of {sizes} has {prod(shape)} places, but the run has {self.world_size} processes; start "
                f"{prod(shape)}, or set sizes whose product is {self.world_size}."
            )

    @override
    def make_mesh(self) -> DeviceMesh:
        return device_mesh(self.root_device, self.mesh_shape, _AXES)

    def shard_model(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Shard ``model`` in place, unless it is sharded; ``optimizer`` gets the new parameters.

        All processes get the weights of the first, layer by layer, so that none needs memory for more than its shards
        and the largest layer; the other processes may have made the model on the meta device. If the model of the
        first process is on the meta device too, the weights stay empty, to be loaded.
        """
        if not is_sharded(model):
            self._split_and_shard(model, optimizer)
        elif (mesh := hf_compat.mesh_of_loaded(model)) is not None:
            hf_compat.sum_gradients_of_replicated(model, mesh)
        # Also the meshes that transformers made while loading.
        meshes = [mesh for mesh in group_by_mesh(model.parameters()) if mesh is not None]
        limit_collectives((group for mesh in meshes for group in mesh.get_all_groups()), process_group_timeout(self))

    def _split_and_shard(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        old = dict(model.named_parameters())
        mesh = self.make_mesh()
        has_values = self.broadcast(not is_empty(model))
        if self.tensor_parallel_size > 1:
            _synchronise(model.modules(), self.root_device, has_values=has_values)
            hf_compat.split_layers(cast(PreTrainedModel, model), mesh["tensor"])  # `check_model` has seen its plan
        if prod(self.mesh_shape[:2]) > 1 or self.tensor_parallel_size == 1:
            shards = mesh["replicate", "shard"] if self.mesh_shape[0] > 1 else mesh["shard"]
            self._fully_shard(model, shards, has_values=has_values)
        if isinstance(base := hf_compat.unwrap_peft_model(model), PreTrainedModel):
            base.tie_weights(recompute_mapping=False)
        new = dict(model.named_parameters())
        if optimizer is not None:
            renewed = {parameter: new[name] for name, parameter in old.items() if name in new}
            for group in optimizer.param_groups:
                group["params"] = [renewed.get(parameter, parameter) for parameter in group["params"]]

    def _fully_shard(self, model: nn.Module, mesh: DeviceMesh, *, has_values: bool) -> None:
        sharding = self.sharding
        device = self.root_device
        layers = sharding.layers(model)
        policies: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": sharding.reshard_after_forward,
            "mp_policy": _build_precision_policy(str(self.precision_plugin.precision)),
            "offload_policy": CPUOffloadPolicy(pin_memory=device.type != "cpu")
            if sharding.cpu_offload
            else OffloadPolicy(),
        }
        if sharding.activation_checkpointing:
            for layer in layers:
                recompute_activations(layer)
        for unit in [*layers, model]:
            done = {module for layer in unit.modules() if isinstance(layer, FSDPModule) for module in layer.modules()}
            own = (module for module in unit.modules() if module not in done)
            _synchronise(own, device, has_values=has_values)
            fully_shard(unit, **policies)
            # Checkpoints and messages should name the user's class: `fully_shard` has made a subclass.
            type(unit).__name__ = type(unit).__mro__[2].__name__
        if hasattr(model, "generate"):
            register_fsdp_forward_method(model, "generate")

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        # Lightning's method requires a module that overrides `configure_model`, about which callbacks warn.
        module: Any = self.lightning_module
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        module.shard_model(self)
        self.precision_plugin.convert_module(module)
        if not self.sharding.cpu_offload:
            self.model_to_device()
        self.barrier()
        if trainer.state.fn is TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        self._split = split_sequences(module.model, self, self.sequence_sharing)
        if self._split is not None:
            free_full_weights(module.model)

    @override
    def teardown(self) -> None:
        if self._split is not None:
            self._split.remove()
        super().teardown()

    @override
    def on_validation_end(self) -> None:
        module: Any = self.lightning_module
        # There is no backward pass that would free them.
        free_full_weights(module.model)

    on_test_end = on_validation_end

    @override
    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Do not reduce gradients before the last batch of the window, unless ``sync_each_batch`` is set."""
        module: Any = self.lightning_module
        model = module.model
        syncs = self.sync_each_batch or module.closes_window or not isinstance(model, FSDPModule)
        with nullcontext() if syncs else without_reduction(model):
            yield


@contextmanager
def without_reduction(model: FSDPModule) -> Iterator[None]:
    """Inside the block, add up full gradients in each process instead of reducing them to shards."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


@contextmanager
def gathered_root(model: nn.Module) -> Iterator[None]:
    """Inside the block, gather the weights outside the layers that are gathered one at a time."""
    if isinstance(model, FSDPModule):
        model.unshard()
    try:
        yield
    finally:
        free_full_weights(model)


def is_sharded(model: nn.Module) -> bool:
    """Return whether ``model``, or a part of it, is sharded over processes."""
    return isinstance(model, FSDPModule) or any(isinstance(parameter, DTensor) for parameter in model.parameters())


def free_full_weights(model: nn.Module) -> None:
    """Free the full weights that a forward pass has gathered and kept, so that the parameters are shards again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def is_empty(model: nn.Module) -> bool:
    """Return whether a weight of ``model`` is on the meta device."""
    return any(parameter.is_meta for parameter in model.parameters())


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``, gathered if it is sharded. All processes call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def group_by_mesh(tensors: Iterable[torch.Tensor]) -> dict[Any, list[torch.Tensor]]:
    """Group ``tensors`` by the mesh that shards them, ``None`` if none does: a kernel takes tensors of one mesh."""
    sorted_: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        sorted_.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return sorted_


def clip_grad_norm_(parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2) -> torch.Tensor:
    """Clip the gradients of parameters, sharded or not; return their total norm, the same on every process."""
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    meshes = list(group_by_mesh(parameters).values())
    norms = []
    for same in meshes:
        gradients = [parameter.grad for parameter in same if parameter.grad is not None]
        norms.append(full_tensor(nn.utils.get_total_norm(gradients, norm_type)))
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), norm_type)
    for same in meshes:
        nn.utils.clip_grads_with_norm_(same, max_norm, norm)
    return norm


def check_model(strategy: object, model: nn.Module) -> None:
    """Raise ``InputError`` if ``model`` cannot be trained as ``strategy`` says."""
    if not isinstance(strategy, ShardedStrategy):
        if is_sharded(model):
            raise InputError(
                f"The weights of {type(model).__name__} are sharded already, by an earlier trainer, and "
                f"{type(strategy).__name__} trains full weights; set `fsdp=True` as there, or load the model again."
            )
        return
    if is_sharded(model):
        return
    if strategy.tensor_parallel_size > 1 and hf_compat.unwrap_peft_model(model) is not model:
        raise InputError(
            f"`tp_size={strategy.tensor_parallel_size}` splits layers by the model's `tp_plan`, which says nothing of "
            "adapters of PEFT; leave it out and set `fsdp=True`."
        )
    if strategy.tensor_parallel_size > 1 and not getattr(model, "tp_plan", None):
        raise InputError(
            f"`tp_size={strategy.tensor_parallel_size}` splits layers by the model's `tp_plan`, which "
            f"{type(model).__name__} does not have; leave it out and set `fsdp=True`, or give the configuration a "
            "`base_model_tp_plan`."
        )
    if strategy.tensor_parallel_size > 1:
        _check_heads(model, strategy.tensor_parallel_size)
        refuse_before("5.23", f"`tp_size={strategy.tensor_parallel_size}`")
    strategy.sharding.layers(model)


def _check_heads(model: nn.Module, size: int) -> None:
    """Raise ``InputError`` if the attention heads of ``model``, which its plan splits, cannot be shared equally."""
    config: Any = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    plan: Any = model.tp_plan
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % size and any("attn" in layer for layer in plan):
            raise InputError(
                f"`tp_size={size}` does not divide the {heads} heads (`{name}`) of {type(model).__name__}, which its "
                "`tp_plan` splits; set a divisor, and `dp_shard_size` for the other processes."
            )


def _synchronise(modules: Iterable[nn.Module], device: torch.device, *, has_values: bool) -> None:
    """Copy parameters and buffers of ``modules``, without submodules, from the first process to all, on ``device``.

    They are put on the meta device if the first process has no values.
    """
    renewed: dict[Any, Any] = {}
    for module in modules:
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None or isinstance(tensor, DTensor):
                    continue
                if tensor not in renewed:
                    renewed[tensor] = _broadcast_tensor(tensor, device) if has_values else _wrap_like(tensor, "meta")
                tensors[name] = renewed[tensor]


def _broadcast_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    moved = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.detach().to(device)
    data = moved.contiguous()
    dist.broadcast(data, 0)
    return tensor if data.data_ptr() == tensor.data_ptr() else _wrap_like(tensor, data)


def _wrap_like(tensor: torch.Tensor, data: "torch.Tensor | str") -> torch.Tensor:
    moved = tensor.detach().to(data) if isinstance(data, str) else data
    return nn.Parameter(moved, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved


def _build_precision_policy(precision: str) -> MixedPrecisionPolicy:
    # As `fsdp_mixed_precision` of transformers 5.23 (`distributed/fsdp.py`): gathered in half precision, reduced in
    # full.
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32) if dtype else MixedPrecisionPolicy()


def _find_repeated(modules: list[nn.Module]) -> list[str]:
    names = [type(module).__name__ for module in modules if any(True for _ in module.children())]
    return sorted({name for name in names if names.count(name) > 1})
