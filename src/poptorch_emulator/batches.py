"""How a combined batch is cut into micro-batches."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from poptorch_emulator.containers import map_structure, parser_of
from poptorch_emulator.enums import OutputMode
from poptorch_emulator.errors import Error
from poptorch_emulator.machine import settings


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


_WHY = (
    "This error occurred because the inputs passed at runtime don't match the inputs used to compile the model: a "
    "compiled program takes the same containers, types, shapes and constants on every call."
)


class InputFormat:
    """Containers, types and shapes that a program was compiled for.

    Args:
        arguments: Arguments by name at compilation.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._compiled = {
            name: map_structure(lambda leaf: leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf, value)
            for name, value in arguments.items()
        }

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments of another form.

        Raises:
            Error: Names the argument and what differs.
        """
        if arguments.keys() != self._compiled.keys():
            raise Error(
                f"Keys mismatch for the arguments: expected {list(self._compiled)} but got {list(arguments)}. {_WHY}"
            )
        for name, value in arguments.items():
            _compare(name, self._compiled[name], value)


class ModelInputs:
    """Binds the arguments of a call to the names of a model's ``forward``.

    Args:
        model: The model.
        layout: How combined batches are cut.
    """

    def __init__(self, model: nn.Module, layout: BatchLayout) -> None:
        self._signature = inspect.signature(model.forward)
        self._layout = layout

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as the device holds them, positional and by name; arguments left out stay out.

        Raises:
            AssertionError: If a batch cannot be cut into micro-batches.
            Error: If they do not fit, or a tensor requires a gradient.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Error(f"The arguments do not fit the model's forward: {error}") from error
        # What is left out and what is given as its default are one program.
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is not parameter.POSITIONAL_ONLY and bound.arguments.get(name, ()) is parameter.default:
                del bound.arguments[name]
        positional = tuple(map_structure(_on_device, value) for value in bound.args)
        named = {name: map_structure(_on_device, value) for name, value in bound.kwargs.items()}
        for argument, value in self.names(positional, named).items():
            for path, tensor in _named_tensors(argument, value):
                self._layout.check(path, tensor)
        return positional, named

    def names(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of :meth:`bind` by name."""
        names = [
            name
            for name, parameter in self._signature.parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        positional = {
            names[index] if index < len(names) else f"args[{index - len(names)}]": value
            for index, value in enumerate(args)
        }
        return {**positional, **kwargs}


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    parser = parser_of(value)
    if isinstance(value, Tensor):
        yield name, value
    elif parser is not None:
        yield from _named_tensors(name, list(parser.yieldTensors(value)))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_tensors(f"{name}[{key}]", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _named_tensors(f"{name}[{index}]", item)


def device_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the format that a device computes ``dtype`` in; index types are left to torch, which needs them wide."""
    if dtype is torch.bfloat16 or (dtype is torch.float64 and not settings.keeps_float64):
        return torch.float32
    return dtype


def _on_device(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.requires_grad:
        raise Error(
            "An input tensor to an IPU model can not have requires_grad set to True. If you need it, move it into "
            "the model as a parameter, or detach it."
        )
    return leaf.to(device_dtype(leaf.dtype))


def _compare(name: str, expected: Any, got: Any) -> None:
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        if expected.dtype != got.dtype:
            raise Error(f"Data type mismatch for {name}: expected {expected.dtype} but got {got.dtype}. {_WHY}")
        if expected.shape != got.shape:
            shapes = f"expected {list(expected.shape)} but got {list(got.shape)}"
            raise Error(f"Shape mismatch for {name}: {shapes}. {_WHY}")
        return
    if type(expected) is not type(got):
        types = f"expected {type(expected)} but got {type(got)}"
        raise Error(f"Type mismatch for {name}: {types}. {_WHY}")
    parser = parser_of(expected)
    if parser is not None:
        _compare(name, list(parser.yieldTensors(expected)), list(parser.yieldTensors(got)))
    elif isinstance(expected, Mapping):
        if expected.keys() != got.keys():
            raise Error(f"Keys mismatch for {name}: expected {list(expected)} but got {list(got)}. {_WHY}")
        for key, value in expected.items():
            _compare(f"{name}[{key}]", value, got[key])
    elif isinstance(expected, list | tuple):
        if len(expected) != len(got):
            raise Error(f"Length mismatch for {name}: expected {len(expected)} but got {len(got)}. {_WHY}")
        for index, (value, other) in enumerate(zip(expected, got, strict=True)):
            _compare(f"{name}[{index}]", value, other)
    elif expected != got:
        raise Error(f"Value mismatch for {name}: expected {expected} but got {got}. {_WHY}")


class OutputCollector:
    """Keeps the results of micro-batches that the output mode asks for, and joins them.

    Args:
        mode: ``Final`` (the last micro-batch of each replica), ``EveryN`` (all micro-batches of every n-th device
            iteration), ``All``, or ``Sum`` (of each replica, over its micro-batches).
        period: Of ``EveryN``.
        layout: The combined batch.
    """

    def __init__(self, mode: OutputMode, period: int, layout: BatchLayout) -> None:
        self._mode = mode
        self._period = period
        self._layout = layout
        self._kept: dict[tuple[int, int, int], Any] = {}

    def add(self, micro_batch: MicroBatch, outputs: Any) -> None:
        """Take the outputs of a micro-batch."""
        place = (micro_batch.iteration, micro_batch.accumulation, micro_batch.replica)
        if self._mode is OutputMode.Sum:
            place = (0, 0, micro_batch.replica)
            held = self._kept.get(place)
            outputs = _snapshot(outputs) if held is None else _combine(torch.add, [held, outputs])
            self._kept[place] = outputs
        elif self._is_wanted(micro_batch):
            self._kept[place] = _snapshot(outputs)

    def result(self) -> Any:
        """Return the joined outputs, in containers like the model's.

        Scalars of one micro-batch stay scalars, those of several become a vector.
        """
        kept = [self._kept[place] for place in sorted(self._kept)]
        return map_structure(_to_host, _combine(_concatenate, kept)) if kept else None

    def _is_wanted(self, micro_batch: MicroBatch) -> bool:
        if self._mode is OutputMode.All:
            return True
        if self._mode is OutputMode.EveryN:
            return (micro_batch.iteration + 1) % self._period == 0
        last = (self._layout.device_iterations - 1, self._layout.gradient_accumulation - 1)
        return (micro_batch.iteration, micro_batch.accumulation) == last


def without_backward(outputs: Any) -> Any:
    """Return what a training model returned, with tensors whose ``backward`` raises ``Error``."""
    return map_structure(_sealed, outputs)


def _sealed(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        leaf.backward = _refuse_backward  # type: ignore[method-assign]
    return leaf


def _refuse_backward(*args: Any, **kwargs: Any) -> None:
    raise Error(
        "backward() cannot be called explicitly on outputs of a PopTorch model: a call of a training model makes the "
        "backward pass and the weight update by itself."
    )


def _snapshot(outputs: Any) -> Any:
    # An output may be a weight, a buffer or an input, which later micro-batches change.
    return map_structure(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, outputs)


def _combine(function: Callable[..., Any], outputs: list[Any]) -> Any:
    first = outputs[0]
    if len(outputs) == 1:
        return first
    leaves = [_leaves(one) for one in outputs]
    columns = iter(zip(*leaves, strict=True))

    def combined(_: Any) -> Any:
        column = next(columns)
        if not isinstance(column[0], Tensor):
            return column[0]
        return function(*column) if function is torch.add else function(column)

    return map_structure(combined, first)


def _leaves(value: Any) -> list[Any]:
    leaves: list[Any] = []
    map_structure(leaves.append, value)
    return leaves


def _concatenate(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(tensors) if not tensors[0].dim() else torch.cat(tensors)


def _to_host(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.int() if leaf.dtype is torch.int64 else leaf.to(device_dtype(leaf.dtype))
