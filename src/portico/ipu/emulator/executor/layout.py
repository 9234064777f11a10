"""How a combined batch is cut into micro-batches."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from portico.ipu.emulator.custom_arguments import parser_of, refuse_hidden_tensors


@dataclass(frozen=True)
class MicroBatch:
    """The place of a micro-batch.

    Args:
        iteration: Device iteration, the outermost.
        accumulation: Micro-batch of a replica within its weight update.
        replica: Copy of the model, the innermost.
        index: Where its rows lie among the micro-batches of its combined batch.
    """

    iteration: int
    accumulation: int
    replica: int
    index: int


@dataclass(frozen=True)
class BatchLayout:
    """The combined batch of a call: dimension 0 is iterations by accumulation by input groups of replicas.

    Args:
        device_iterations: Weight updates, or inference batches, of a call.
        gradient_accumulation: Micro-batches of a replica for one weight update.
        replication_factor: Copies of the model.
        input_group_size: Replicas that read the same rows.
    """

    device_iterations: int
    gradient_accumulation: int
    replication_factor: int
    input_group_size: int = 1

    @property
    def num_parts(self) -> int:
        """Micro-batches that the rows of a combined batch make."""
        return self.device_iterations * self.gradient_accumulation * self.num_input_groups

    @property
    def num_input_groups(self) -> int:
        """Groups of replicas that read different rows."""
        return self.replication_factor // self.input_group_size

    def iteration(self, iteration: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one weight update, replica by replica."""
        for replica in range(self.replication_factor):
            for accumulation in range(self.gradient_accumulation):
                group = replica // self.input_group_size
                row = (iteration * self.gradient_accumulation + accumulation) * self.num_input_groups + group
                yield MicroBatch(iteration, accumulation, replica, row)

    def check(self, name: str, tensor: Tensor) -> None:
        """Refuse a combined batch that cannot be cut evenly; a tensor without dimensions goes to every micro-batch.

        Raises:
            AssertionError: Names the input, its size and the factors.
        """
        if tensor.dim() and tensor.shape[0] % self.num_parts:
            raise AssertionError(
                f"Invalid batch dimension: In the input {name}, the batch dimension ({tensor.shape[0]}) must be a "
                f"multiple of Options.deviceIterations({self.device_iterations}) * "
                f"Options.replicationFactor({self.num_input_groups}) * "
                f"Options.Training.gradientAccumulation({self.gradient_accumulation}) = {self.num_parts}: each "
                "micro-batch gets as many rows."
            )

    def part(self, tensor: Tensor, index: int) -> Tensor:
        """Return the rows of micro-batch ``index``."""
        if not tensor.dim():
            return tensor
        size = tensor.shape[0] // self.num_parts
        return tensor.narrow(0, index * size, size)


def map_structure(function: Any, value: Any) -> Any:
    """Apply ``function`` to the leaves of nested containers, and rebuild them.

    Containers are lists, tuples, named tuples, mappings, dataclasses and objects of registered classes.

    Raises:
        Error: If a leaf holds tensors that nothing could cut or join.
    """
    parser = parser_of(value)
    if parser is not None:
        return parser.reconstruct(value, iter([function(leaf) for leaf in parser.yieldTensors(value)]))
    if isinstance(value, Mapping):
        return _rebuilt(value, {key: map_structure(function, item) for key, item in value.items()})
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: map_structure(function, getattr(value, field.name)) for field in fields(value)}
        )
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_structure(function, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_structure(function, item) for item in value)
    refuse_hidden_tensors(value)
    return function(value)


def _rebuilt(mapping: Any, items: dict[Any, Any]) -> Any:
    kind: Any = type(mapping)
    # A `ModelOutput` is a dataclass; other mappings are made from a dict.
    if hasattr(mapping, "to_tuple"):
        return kind(**items)
    return kind(mapping.default_factory, items) if isinstance(mapping, defaultdict) else kind(items)
