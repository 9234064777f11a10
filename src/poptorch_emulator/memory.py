"""What a program has on the device: copies of weights and buffers for each replica, and the compiled structure."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from poptorch_emulator.enums import CommGroupType, VariableRetrievalMode
from poptorch_emulator.errors import Error
from poptorch_emulator.machine import settings

_GROUPING = "_ipu_replica_grouping"


class ReplicaGroups:
    """Which replicas share a value of a parameter.

    On the host, the first dimension of a grouped parameter is the groups.
    """

    def __init__(self, group_of: Sequence[int]) -> None:
        self.group_of = group_of
        self.num_groups = max(group_of) + 1
        self.num_members = len(group_of) // self.num_groups

    @classmethod
    def get(cls, parameter: nn.Parameter, num_replicas: int) -> "ReplicaGroups":
        """Return the groups that ``parameter.replicaGrouping`` set, or one group of all replicas."""
        kind, size = getattr(parameter, _GROUPING, (CommGroupType.All, 0))
        if kind is CommGroupType.All:
            return cls([0] * num_replicas)
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
        return cls([r // size if consecutive else r % num_groups for r in range(num_replicas)])

    def split(self, host: Tensor) -> list[Tensor]:
        return [host] if self.num_groups == 1 else list(host.unbind(0))

    def join_into(self, host: Tensor, values: Sequence[Tensor]) -> None:
        host.copy_(values[0] if self.num_groups == 1 else torch.stack(list(values)))


def _group_replicas(
    parameter: nn.Parameter,
    comm_group_type: CommGroupType,
    shards: int,
    variable_retrieval_mode: VariableRetrievalMode = VariableRetrievalMode.OnePerGroup,
) -> None:
    setattr(parameter, _GROUPING, (comm_group_type, shards))


def add_replica_grouping(module: nn.Module) -> None:
    """Give every parameter of ``module`` the method ``replicaGrouping``."""
    parameter: Any
    for parameter in module.parameters():
        parameter.replicaGrouping = partial(_group_replicas, parameter)


@dataclass
class _Buffer:
    """A buffer: its name, the module and key that hold it, the host's tensor, and the device's for each replica."""

    name: str
    owner: nn.Module
    key: str
    tensor: Tensor
    replicas: list[Tensor]

    def restore(self, data: Tensor) -> None:
        self.tensor.data = data
        self.owner._buffers[self.key] = self.tensor


class DeviceMemory:
    """Parameters and buffers as the device holds them.

    A program runs the user's own modules, whose tensors point to the device's memory during a call: a copy of the
    modules would miss models that reach sub-modules through closures. Replicas share parameters, unless these are
    grouped; each replica has its own buffers.
    """

    def __init__(self, module: nn.Module, *, num_replicas: int, broadcasts_buffers: bool) -> None:
        self._num_replicas = num_replicas
        self._broadcasts_buffers = broadcasts_buffers
        self.parameters = dict(module.named_parameters())
        self.groups = {name: ReplicaGroups.get(parameter, num_replicas) for name, parameter in self.parameters.items()}
        self._grouped = [name for name, groups in self.groups.items() if groups.num_groups > 1]
        self.parameter_ids = frozenset(map(id, self.parameters.values()))
        # The device's tensors of each parameter, one for each group of replicas.
        self.values: dict[str, list[Tensor]] = {}
        self._buffers = []
        for name, tensor in module.named_buffers():
            path, _, key = name.rpartition(".")
            self._buffers.append(_Buffer(name, module.get_submodule(path), key, tensor, []))
        self.upload()

    # ---- Between host and device ----

    @torch.no_grad()
    def upload(self) -> None:
        for name, parameter in self.parameters.items():
            self.values[name] = [_device_copy(part) for part in self.groups[name].split(parameter.data)]
        for buffer in self._buffers:
            tensor = buffer.owner._buffers[buffer.key]
            assert tensor is not None, "`named_buffers` leaves out those that are None"
            buffer.tensor = tensor
            buffer.replicas = [_device_copy(buffer.tensor) for _ in range(self._num_replicas)]

    @torch.no_grad()
    def download(self) -> None:
        """Overwrite the host's memory with the device's; of buffers, the first replica's."""
        for name, parameter in self.parameters.items():
            self.groups[name].join_into(parameter.data, self.values[name])
        for buffer in self._buffers:
            buffer.tensor.data.copy_(buffer.replicas[0])

    @torch.no_grad()
    def upload_buffers(self, names: Sequence[str]) -> None:
        for buffer in self._buffers:
            if buffer.name in names:
                for replica in buffer.replicas:
                    replica.copy_(buffer.tensor)

    # ---- During a call ----

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Let the module's tensors point to the device's memory inside the ``with`` block."""
        host = {name: (parameter.data, parameter.grad) for name, parameter in self.parameters.items()}
        host_buffers = [buffer.tensor.data for buffer in self._buffers]
        try:
            for name, parameter in self.parameters.items():
                parameter.grad = None
                parameter.data = self.values[name][0]
            yield
        finally:
            for name, parameter in self.parameters.items():
                # Data first: a gradient must match it in format and shape.
                parameter.data, parameter.grad = host[name]
            for buffer, data in zip(self._buffers, host_buffers, strict=True):
                buffer.restore(data)

    def enter_replica(self, replica: int) -> None:
        """Point the module to the memory of a replica, inside :meth:`swapped_in`."""
        for name in self._grouped:
            self.parameters[name].data = self.values[name][self.groups[name].group_of[replica]]
        for buffer in self._buffers:
            buffer.tensor.data = buffer.replicas[replica]

    def check_buffers(self) -> None:
        """Raise ``Error`` if a forward pass replaced the tensor of a buffer, inside :meth:`swapped_in`."""
        for buffer in self._buffers:
            if buffer.owner._buffers.get(buffer.key) is not buffer.tensor:
                raise Error(
                    f"Buffer {buffer.name} is reassigned within the model when running on the IPU, where it has to "
                    "stay the same tensor; change it in place, for example with `copy_`."
                )

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo changes of the entered replica's buffers after the ``with`` block; refuse those that would diverge."""
        saved = [buffer.tensor.data for buffer in self._buffers]
        try:
            for buffer, data in zip(self._buffers, saved, strict=True):
                buffer.tensor.data = data.clone()
            yield
            if self._num_replicas > 1 and self._broadcasts_buffers:
                self._refuse_changed_buffers(saved)
        finally:
            for buffer, data in zip(self._buffers, saved, strict=True):
                buffer.restore(data)

    def _refuse_changed_buffers(self, before: list[Tensor]) -> None:
        pairs = zip(self._buffers, before, strict=True)
        changed = [buffer.name for buffer, data in pairs if not torch.equal(buffer.tensor.data, data)]
        if changed:
            raise Error(
                f"PopTorch does not support broadcasting buffers that the model changes ({', '.join(changed)}) with "
                f"a replication factor of {self._num_replicas}; set `poptorch.Options.broadcastBuffers(False)`, which "
                "gives each replica its own."
            )


def _device_copy(tensor: Tensor) -> Tensor:
    copied = tensor.detach().clone()
    return copied if settings.keeps_float64 or copied.dtype != torch.float64 else copied.float()


# Everything besides its tensors that decides which operations a module runs.
_STRUCTURE = ("training", "_modules", "_forward_hooks", "_forward_pre_hooks")


class CompiledStructure:
    """Classes, children, hooks and training flags of a model at compilation.

    A real device runs no Python after compilation, so later changes on the host are not part of the program.
    """

    def __init__(self, module: nn.Module) -> None:
        self._compiled = [
            (part, type(part), {name: copy(part.__dict__[name]) for name in _STRUCTURE}) for part in module.modules()
        ]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Give the modules their compiled structure inside the ``with`` block."""
        changed = [
            (part, kind, attributes)
            for part, kind, attributes in self._compiled
            if type(part) is not kind or any(part.__dict__[name] != value for name, value in attributes.items())
        ]
        current = [(part, type(part), {name: part.__dict__[name] for name in _STRUCTURE}) for part, _, _ in changed]
        _apply(changed)
        try:
            yield
        finally:
            _apply(current)


def _apply(structures: list[tuple[nn.Module, type, dict[str, Any]]]) -> None:
    for part, kind, attributes in structures:
        part.__class__ = kind
        part.__dict__.update(attributes)
