"""Weights that groups of replicas hold different values of."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from poptorch_emulator.enums import CommGroupType, VariableRetrievalMode
from poptorch_emulator.errors import Error
from poptorch_emulator.machine import settings

_ATTRIBUTE = "_ipu_replica_grouping"


class ReplicaGroups:
    """Which replicas share a value of a parameter.

    On the host, a grouped parameter has the groups as its first dimension.

    Args:
        num_replicas: Replicas of the program.
        group_of_replica: Group of each replica.
    """

    def __init__(self, num_replicas: int, group_of_replica: Sequence[int]) -> None:
        self._group_of_replica = list(group_of_replica)
        self.num_groups = max(self._group_of_replica) + 1
        self.num_members = num_replicas // self.num_groups

    @classmethod
    def of(cls, parameter: nn.Parameter, num_replicas: int) -> "ReplicaGroups":
        """Return the groups that a parameter was given, or one of all replicas.

        Raises:
            Error: If the groups do not divide the replicas, or the parameter has no dimension for them.
        """
        kind, size = getattr(parameter, _ATTRIBUTE, (CommGroupType.All, 0))
        if kind is CommGroupType.All:
            return cls(num_replicas, [0] * num_replicas)
        size = 1 if kind is CommGroupType.NoGrouping else size
        if size < 1 or num_replicas % size:
            raise Error(f"Groups of {size} replicas do not divide the replication factor {num_replicas}.")
        num_groups = num_replicas // size
        if parameter.shape[:1] != (num_groups,):
            raise Error(
                f"A parameter in {num_groups} replica groups needs a first dimension of {num_groups}; its shape is "
                f"{tuple(parameter.shape)}."
            )
        consecutive = kind is not CommGroupType.Orthogonal
        return cls(num_replicas, [r // size if consecutive else r % num_groups for r in range(num_replicas)])

    def group_of(self, replica: int) -> int:
        """Return the group of a replica."""
        return self._group_of_replica[replica]

    def split(self, host: Tensor) -> list[Tensor]:
        """Return the value of each group."""
        return [host] if self.num_groups == 1 else list(host.unbind(0))

    def join_into(self, host: Tensor, values: Sequence[Tensor]) -> None:
        """Write the values of the groups to the host."""
        host.copy_(values[0] if self.num_groups == 1 else torch.stack(list(values)))


def offer_grouping(module: nn.Module) -> None:
    """Give every parameter of ``module`` the method ``replicaGrouping``."""
    for parameter in module.parameters():
        parameter.replicaGrouping = _Grouping(parameter)  # type: ignore[attr-defined]


class _Grouping:
    """``parameter.replicaGrouping(...)``."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter = parameter

    def __call__(
        self,
        comm_group_type: CommGroupType,
        shards: int,
        variable_retrieval_mode: VariableRetrievalMode = VariableRetrievalMode.OnePerGroup,
    ) -> None:
        setattr(self._parameter, _ATTRIBUTE, (comm_group_type, shards))

    def __deepcopy__(self, memo: Any) -> "_Grouping":
        return self


@dataclass
class _Buffer:
    name: str
    owner: nn.Module
    key: str
    tensor: Tensor
    replicas: list[Tensor]


class DeviceMemory:
    """Parameters and buffers as the device holds them.

    A program runs the user's own modules, whose tensors point at the device's memory for the length of a call: a copy
    of the modules would miss models that reach sub-modules through closures. Parameters are shared by the replicas,
    unless they are grouped; each replica has its own buffers.

    Args:
        module: The model.
        num_replicas: Copies of the model that work on other data.
        broadcasts_buffers: Whether the replicas' buffers have to stay equal.

    Attributes:
        parameters: The module's parameters by name.
        values: What the device holds of each, one tensor for each replica group.
    """

    def __init__(self, module: nn.Module, *, num_replicas: int, broadcasts_buffers: bool) -> None:
        self._module = module
        self._num_replicas = num_replicas
        self._broadcasts_buffers = broadcasts_buffers
        self.parameters = dict(module.named_parameters())
        self.groups = {name: ReplicaGroups.of(parameter, num_replicas) for name, parameter in self.parameters.items()}
        self.parameter_ids = frozenset(map(id, self.parameters.values()))
        self.values: dict[str, list[Tensor]] = {}
        self._buffers = [_buffer(module, name, tensor) for name, tensor in module.named_buffers()]
        self.upload()

    @property
    def grouped_names(self) -> list[str]:
        """Parameters of which groups of replicas hold different values."""
        return [name for name, groups in self.groups.items() if groups.num_groups > 1]

    # Between host and device

    @torch.no_grad()
    def upload(self) -> None:
        """Overwrite the device's memory with the host's."""
        for name, parameter in self.parameters.items():
            slices = self.groups[name].split(parameter.data)
            self.values[name] = [_device_copy(part) for part in slices]
        for buffer in self._buffers:
            buffer.tensor = buffer.owner._buffers[buffer.key]  # type: ignore[assignment]
            buffer.replicas = [_device_copy(buffer.tensor) for _ in range(self._num_replicas)]

    @torch.no_grad()
    def download(self) -> None:
        """Overwrite the host's memory with the device's; of buffers, the first replica's."""
        for name, parameter in self.parameters.items():
            self.groups[name].join_into(parameter.data, self.values[name])
        for buffer in self._buffers:
            buffer.tensor.data.copy_(buffer.replicas[0])

    @torch.no_grad()
    def upload_buffers(self, names: list[str]) -> None:
        """Overwrite the named buffers of the device."""
        for buffer in self._buffers:
            if buffer.name in names:
                for replica in buffer.replicas:
                    replica.copy_(buffer.tensor)

    # During a call

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Let the module's tensors point at the device's memory, and the host's again afterwards."""
        host_data = {name: parameter.data for name, parameter in self.parameters.items()}
        host_gradients = {name: parameter.grad for name, parameter in self.parameters.items()}
        host_buffers = [buffer.tensor.data for buffer in self._buffers]
        try:
            for name, parameter in self.parameters.items():
                parameter.grad = None
                parameter.data = self.values[name][0]
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.data = host_data[name]
                parameter.grad = host_gradients[name]
            for buffer, data in zip(self._buffers, host_buffers, strict=True):
                buffer.tensor.data = data
                buffer.owner._buffers[buffer.key] = buffer.tensor

    def enter_replica(self, replica: int) -> None:
        """Point the module at the memory of a replica, inside :meth:`swapped_in`."""
        for name in self.grouped_names:
            self.parameters[name].data = self.values[name][self.groups[name].group_of(replica)]
        for buffer in self._buffers:
            buffer.tensor.data = buffer.replicas[replica]

    def check_buffers(self) -> None:
        """Refuse what a forward pass did to buffers, inside :meth:`swapped_in`.

        Raises:
            Error: If a buffer is another tensor now.
        """
        for buffer in self._buffers:
            if buffer.owner._buffers.get(buffer.key) is not buffer.tensor:
                raise Error(
                    f"Buffer {buffer.name} is reassigned within the model when running on the IPU, where it has to "
                    "stay the same tensor; change it in place, for example with `copy_`."
                )

    @contextmanager
    def buffers_on_trial(self) -> Iterator[None]:
        """Undo what happens to the buffers of the replica that is entered, inside :meth:`swapped_in`.

        Raises:
            Error: If buffers change that several replicas are told to hold the same of.
        """
        saved = [buffer.tensor.data for buffer in self._buffers]
        try:
            for buffer, data in zip(self._buffers, saved, strict=True):
                buffer.tensor.data = data.clone()
            yield
            self._refuse_diverging_buffers(saved)
        finally:
            for buffer, data in zip(self._buffers, saved, strict=True):
                buffer.tensor.data = data
                buffer.owner._buffers[buffer.key] = buffer.tensor

    def _refuse_diverging_buffers(self, before: list[Tensor]) -> None:
        if self._num_replicas == 1 or not self._broadcasts_buffers:
            return
        pairs = zip(self._buffers, before, strict=True)
        changed = [buffer.name for buffer, data in pairs if not torch.equal(buffer.tensor.data, data)]
        if changed:
            raise Error(
                f"PopTorch does not support broadcasting buffers that the model changes ({', '.join(changed)}) with "
                f"a replication factor of {self._num_replicas}; set `poptorch.Options.broadcastBuffers(False)`, and "
                "each replica keeps its own."
            )


def _buffer(module: nn.Module, name: str, tensor: Tensor) -> _Buffer:
    path, _, key = name.rpartition(".")
    return _Buffer(name, module.get_submodule(path), key, tensor, [])


def _device_copy(tensor: Tensor) -> Tensor:
    copied = tensor.detach().clone()
    return copied if settings.keeps_float64 or copied.dtype != torch.float64 else copied.float()


# Everything that decides which operations a module runs, beside its tensors.
_COMPILED_ATTRIBUTES = ("training", "_modules", "_forward_hooks", "_forward_pre_hooks")


class CompiledStructure:
    """Classes, children, hooks and training flags of a model at compilation.

    Python runs once on a real device, so what changes on the host later is not in the program.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._compiled = [(part, type(part), _attributes(part)) for part in module.modules()]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Bring the modules back to what they were, and leave them as they are now afterwards."""
        changed = [
            (part, part.__class__, {name: part.__dict__[name] for name in attributes})
            for part, kind, attributes in self._compiled
            if type(part) is not kind or any(part.__dict__[name] != value for name, value in attributes.items())
        ]
        kinds = {id(part): (kind, attributes) for part, kind, attributes in self._compiled} if changed else {}
        for part, _, _ in changed:
            kind, attributes = kinds[id(part)]
            part.__class__ = kind
            part.__dict__.update(attributes)
        try:
            yield
        finally:
            for part, kind, attributes in changed:
                part.__class__ = kind
                part.__dict__.update(attributes)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value.copy() if isinstance(value := module.__dict__[name], dict) else value
        for name in _COMPILED_ATTRIBUTES
    }
