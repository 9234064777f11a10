"""Weights that groups of replicas hold different values of."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from portico.ipu.emulator.enums import CommGroupType, VariableRetrievalMode
from portico.ipu.emulator.errors import Error

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
