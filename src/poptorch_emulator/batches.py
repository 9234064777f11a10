"""Combined batches: how the inputs of a call are checked and cut into micro-batches, and their outputs joined."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from poptorch_emulator.containers import iterate_tensors, leaves_of, map_structure, map_tensors, parser_of
from poptorch_emulator.enums import OutputMode
from poptorch_emulator.errors import Error
from poptorch_emulator.machine import settings
from poptorch_emulator.options import Options

# Positional and named arguments of a model.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_WHY = (
    "This error occurred because the inputs passed at runtime don't match the inputs used to compile the model: a "
    "compiled program takes the same containers, types, shapes and constants on every call."
)


@dataclass(frozen=True)
class MicroBatch:
    """The position of a micro-batch, and the index of its rows among the parts of the combined batch."""

    iteration: int
    accumulation: int
    replica: int
    index: int


@dataclass(frozen=True)
class BatchLayout:
    """The combined batch of a call: dimension 0 is iterations by accumulation by input groups of replicas."""

    device_iterations: int
    gradient_accumulation: int
    replication_factor: int
    input_group_size: int = 1

    @classmethod
    def from_options(cls, options: Options) -> Self:
        accumulation = options.Training.gradient_accumulation
        return cls(options.device_iterations, accumulation, options.replication_factor, options.input_group_size)

    @property
    def num_parts(self) -> int:
        """Micro-batches into which the rows of a combined batch are cut."""
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
        """Raise ``AssertionError`` if the input ``name`` cannot be cut into micro-batches of equal size."""
        # A tensor without dimensions counts as one row.
        rows = tensor.shape[0] if tensor.dim() else 1
        if rows % self.num_parts:
            raise AssertionError(
                f"Invalid batch dimension: In the input {name}, the batch dimension ({rows}) must be a "
                f"multiple of Options.deviceIterations({self.device_iterations}) * "
                f"Options.replicationFactor({self.num_input_groups}) * "
                f"Options.Training.gradientAccumulation({self.gradient_accumulation}) = {self.num_parts}: each "
                "micro-batch gets as many rows."
            )

    def part(self, arguments: object, index: int) -> Any:
        """Return the arguments of micro-batch ``index``; the only one may have tensors without dimensions."""
        return map_tensors(
            lambda tensor: tensor.unflatten(0, (self.num_parts, -1))[index] if tensor.dim() else tensor, arguments
        )


class ModelInputs:
    """Binds the arguments of calls to a model's ``forward``, and compares them with the arguments of compilation."""

    def __init__(self, model: nn.Module, layout: BatchLayout) -> None:
        self._signature = inspect.signature(model.forward)
        self._layout = layout
        self._compiled: dict[str, Any] = {}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments as the device holds them; those that are left out are not filled in.

        Raises:
            AssertionError: If a batch cannot be cut into micro-batches.
            Error: If they do not match the signature, or a tensor requires a gradient.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Error(f"The arguments do not fit the model's forward: {error}") from error
        # An argument that is left out and one that is passed as its default compile to the same program.
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is not parameter.POSITIONAL_ONLY and bound.arguments.get(name, ()) is parameter.default:
                del bound.arguments[name]
        arguments = (
            tuple(map_tensors(_cast_for_device, value) for value in bound.args),
            {name: map_tensors(_cast_for_device, value) for name, value in bound.kwargs.items()},
        )
        for argument, value in self.name_arguments(arguments).items():
            for path, tensor in iterate_tensors(argument, value):
                self._layout.check(path, tensor)
        return arguments

    def name_arguments(self, arguments: Arguments) -> dict[str, Any]:
        """Return bound arguments by the names of parameters."""
        args, kwargs = arguments
        names = [
            name
            for name, parameter in self._signature.parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        names += [f"args[{index}]" for index in range(len(args) - len(names))]
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def compile(self, arguments: Arguments) -> None:
        """Remember the containers, types, shapes and constants that the program is compiled for."""
        self._compiled = map_tensors(lambda tensor: tensor.detach().to("meta"), self.name_arguments(arguments))

    def check(self, arguments: Arguments) -> None:
        """Raise ``Error`` if arguments differ from the compiled ones in more than the values of tensors."""
        got = self.name_arguments(arguments)
        if got.keys() != self._compiled.keys():
            raise Error(
                f"Keys mismatch for the arguments: expected {list(self._compiled)} but got {list(got)}. {_WHY}"
            )
        for name, value in got.items():
            _compare(name, self._compiled[name], value)


def device_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the format in which a device computes ``dtype``; ints stay wide, because torch indexes by int64."""
    if dtype is torch.bfloat16 or (dtype is torch.float64 and not settings.keeps_float64):
        return torch.float32
    return dtype


def _cast_for_device(tensor: Tensor) -> Tensor:
    if tensor.requires_grad:
        raise Error(
            "An input tensor to an IPU model can not have requires_grad set to True. If you need it, move it into "
            "the model as a parameter, or detach it."
        )
    return tensor.to(device_dtype(tensor.dtype))


def _compare(name: str, expected: object, got: Any) -> None:
    def fail(what: str, expected: object, got: object) -> None:
        raise Error(f"{what} mismatch for {name}: expected {expected} but got {got}. {_WHY}")

    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        if expected.dtype != got.dtype:
            fail("Data type", expected.dtype, got.dtype)
        if expected.shape != got.shape:
            fail("Shape", list(expected.shape), list(got.shape))
        return
    if type(expected) is not type(got):
        fail("Type", type(expected), type(got))
    parser = parser_of(expected)
    if parser is not None:
        _compare(name, list(parser.yieldTensors(expected)), list(parser.yieldTensors(got)))
    elif isinstance(expected, Mapping):
        if expected.keys() != got.keys():
            fail("Keys", list(expected), list(got))
        for key, value in expected.items():
            _compare(f"{name}[{key}]", value, got[key])
    elif isinstance(expected, list | tuple):
        if len(expected) != len(got):
            fail("Length", len(expected), len(got))
        for index, (value, other) in enumerate(zip(expected, got, strict=True)):
            _compare(f"{name}[{index}]", value, other)
    elif expected != got:
        fail("Value", expected, got)


# ---- Outputs ----


class OutputCollector:
    """Keeps the results of micro-batches that the output mode selects, and joins them.

    Args:
        mode: ``Final`` (the last micro-batch of each replica), ``EveryN`` (all micro-batches of every n-th device
            iteration), ``All``, or ``Sum`` (of each replica, over its micro-batches).
        period: Period of ``EveryN``.
        layout: The combined batch.
    """

    def __init__(self, mode: OutputMode, period: int, layout: BatchLayout) -> None:
        self._mode = mode
        self._period = period
        self._layout = layout
        self._kept: dict[tuple[int, int, int], Any] = {}

    def add(self, micro_batch: MicroBatch, outputs: object) -> None:
        place = (micro_batch.iteration, micro_batch.accumulation, micro_batch.replica)
        if self._mode is OutputMode.Sum:
            place = (0, 0, micro_batch.replica)
            held = self._kept.get(place)
            self._kept[place] = (
                _snapshot(outputs) if held is None else _combine(lambda pair: torch.add(*pair), [held, outputs])
            )
        elif self._is_selected(micro_batch):
            self._kept[place] = _snapshot(outputs)

    def result(self) -> Any:
        """Return the joined outputs, in containers like the model's.

        Scalars of one micro-batch stay scalars; scalars of several become a vector.
        """
        kept = [self._kept[place] for place in sorted(self._kept)]
        return map_tensors(_cast_for_host, _combine(_concatenate, kept)) if kept else None

    def _is_selected(self, micro_batch: MicroBatch) -> bool:
        if self._mode is OutputMode.All:
            return True
        if self._mode is OutputMode.EveryN:
            return (micro_batch.iteration + 1) % self._period == 0
        last = (self._layout.device_iterations - 1, self._layout.gradient_accumulation - 1)
        return (micro_batch.iteration, micro_batch.accumulation) == last


def forbid_backward(outputs: object) -> Any:
    """Return the outputs of a training model, after making ``backward`` of their tensors raise ``Error``."""

    def seal(tensor: Any) -> Tensor:
        tensor.backward = _refuse_backward
        return tensor

    return map_tensors(seal, outputs)


def _refuse_backward(*args: object, **kwargs: object) -> None:
    raise Error(
        "backward() cannot be called explicitly on outputs of a PopTorch model: a call of a training model makes the "
        "backward pass and the weight update by itself."
    )


def _snapshot(outputs: object) -> Any:
    # An output may be a weight, a buffer or an input, which later micro-batches change.
    return map_tensors(lambda tensor: tensor.detach().clone(), outputs)


def _combine(join: Callable[[tuple[Tensor, ...]], Tensor], outputs: list[Any]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    columns = iter(zip(*map(leaves_of, outputs), strict=True))

    def combine(_: object) -> Any:
        column = next(columns)
        return join(column) if isinstance(column[0], Tensor) else column[0]

    return map_structure(combine, outputs[0])


def _concatenate(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(tensors) if not tensors[0].dim() else torch.cat(tensors)


def _cast_for_host(tensor: Tensor) -> Tensor:
    # Devices have no 64-bit formats.
    return tensor.int() if tensor.dtype is torch.int64 else tensor.to(device_dtype(tensor.dtype))
