"""Operations with a meaning of their own on IPUs; here they compute what they stand for."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import pairwise
from math import ceil
from typing import Any, Self

import torch
from torch import Tensor

from poptorch_emulator.enums import MatMulSerializationMode
from poptorch_emulator.errors import Error, require_type
from poptorch_emulator.faults import host_access
from poptorch_emulator.machine import isRunningOnIpu
from poptorch_emulator.tracing import current_losses, with_values


def identity_loss(x: Tensor, reduction: str | int = "none") -> Tensor:
    """Mark ``x`` as the loss.

    Args:
        x: Loss values.
        reduction: ``"sum"``, ``"mean"`` or ``"none"`` (or 0, 1, 2).

    Returns:
        The reduced loss; a new tensor also without a reduction.

    Raises:
        Error: For another reduction.
    """
    name = ("sum", "mean", "none")[reduction] if isinstance(reduction, int) and 0 <= reduction < 3 else reduction
    if name == "sum":
        loss = x.sum()
    elif name == "mean":
        loss = x.mean()
    elif name == "none":
        loss = x.clone()
    else:
        raise Error(f"Unsupported reduction type {reduction!r} of identity_loss; use 'sum', 'mean' or 'none'.")
    losses = current_losses()
    if losses is not None:
        losses.mark_identity(loss, x)
    return loss


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Return the tensors; a device keeps them and recomputes what lies between two checkpoints."""
    return tensors[0] if len(tensors) == 1 else tensors


def serializedMatMul(
    lhs: Tensor, rhs: Tensor, mode: MatMulSerializationMode, factor: int = 0, keep_precision: bool = False
) -> Tensor:
    """Return the matrix product that a device computes piece by piece.

    Raises:
        AssertionError: If ``mode`` is none, or the dimension it cuts is no multiple of ``factor``.
    """
    assert isinstance(mode, MatMulSerializationMode), f"mode must be a MatMulSerializationMode; {mode!r} was given"
    sizes = {
        MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
        MatMulSerializationMode.ReducingDim: lhs.shape[-1],
        MatMulSerializationMode.OutputChannels: rhs.shape[-1],
    }
    size = sizes.get(mode)
    assert size is None or (factor > 0 and size % factor == 0), (
        f"{mode.name} has {size} elements, which is no multiple of the factor {factor}"
    )
    return torch.matmul(lhs, rhs)


def set_available_memory(tensor: Tensor, available_memory_proportion: float) -> Tensor:
    """Return ``tensor``; a device gives its operation that share of memory."""
    return tensor


def set_overlap_for_input(input_tensors: Any, mode: Any) -> Any:
    """Return the inputs; a device loads them while it computes."""
    return input_tensors


def set_overlap_for_output(output_tensors: Any, mode: Any) -> Any:
    """Return the outputs; a device stores them while it computes."""
    return output_tensors


def nop(tensor: Tensor) -> Tensor:
    """Return ``tensor``."""
    return tensor


def ipu_print_tensor(
    tensor: Tensor, title: str = "", print_gradient: bool = True, summarize_threshold: int = 1000, **layout: Any
) -> Tensor:
    """Print ``tensor`` when it is computed, and return it."""
    print(f"{title or 'tensor'}: {tensor}")
    return tensor


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int = 1) -> Tensor:
    """Return ``size`` elements of a dimension, from a start that is computed."""
    index = start.reshape(()).long() + torch.arange(0, size, step, device=tensor.device)
    return tensor.index_select(dim, index)


def dynamic_update(input: Tensor, src: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """Return ``input`` with ``size`` elements of a dimension replaced, from a start that is computed."""
    index = start.reshape(()).long() + torch.arange(size, device=input.device)
    return input.index_copy(dim, index, src)


def for_loop(count: int, body: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Apply ``body`` to its own results ``count`` times.

    Raises:
        Error: If ``inputs`` is no list, or ``body`` returns another number of tensors.
    """
    if not isinstance(inputs, list):
        raise Error(f"poptorch.for_loop takes a list of tensors; a {type(inputs).__name__} was given.")
    values = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        result = body(*values)
        values = list(result) if isinstance(result, list | tuple) else [result]
        if len(values) != len(inputs):
            raise Error(
                f"The body of poptorch.for_loop returned {len(values)} tensors, but takes {len(inputs)}; both have to "
                "be the same."
            )
    return values


def cond(
    condition: Tensor,
    then_body: Callable[..., Any],
    then_inputs: list[Tensor],
    else_body: Callable[..., Any],
    else_inputs: list[Tensor],
) -> list[Tensor]:
    """Apply one of two functions, as a computed condition says."""
    body, inputs = (then_body, then_inputs) if bool(condition) else (else_body, else_inputs)
    result = body(*inputs)
    return list(result) if isinstance(result, list | tuple) else [result]


class CPU:
    """A function that runs on the host, where a program for inference calls it.

    Args:
        layer_to_call: The function, or module.
        ID: Its name, unlike those of others.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        self._layer_to_call = layer_to_call
        self.ID = ID

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return what the function returns.

        Raises:
            Error: In a program that trains.
        """
        if isRunningOnIpu() and torch.is_grad_enabled():
            raise Error(
                f"CPU operations are only supported in inference graphs; the model calls {self.ID!r} while it trains. "
                "Compute with torch's operations there."
            )
        with host_access():
            return with_values(self._layer_to_call, inputs, kwargs)


_functions: dict[tuple[str, str], Callable[..., Any]] = {}


def register_custom_op(name: str, domain: str, function: Callable[..., Any]) -> None:
    """Let :func:`custom_op` compute an operation by a Python function; real devices have compiled code of that name.

    Args:
        name: Of the operation.
        domain: Of the operation.
        function: Gets the inputs and, by name, the attributes; returns a tensor, or several.
    """
    _functions[domain, name] = function


def custom_op(
    inputs: list[Tensor] | tuple[Tensor, ...],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: list[Tensor] | tuple[Tensor, ...],
    attributes: dict[str, Any] | None = None,
) -> list[Tensor]:
    """Return the outputs of an operation of the user.

    Args:
        inputs: Its inputs.
        name: Its name.
        domain: Its domain.
        domain_version: Kept.
        example_outputs: Tensors of the shapes and types that come out.
        attributes: Constants.

    Raises:
        Error: If there is no such operation, or it returns something else than ``example_outputs`` says.
    """
    function = _functions.get((domain, name))
    if function is None:
        raise Error(
            f"There is no operation {name!r} of the domain {domain!r}: compiled code does not run on the emulator. "
            "Give it a Python function with `poptorch_emulator.register_custom_op`, or use torch's operations."
        )
    result = function(*inputs, **(attributes or {}))
    outputs = [result] if isinstance(result, Tensor) else list(result)
    expected, got = ([(tuple(one.shape), one.dtype) for one in some] for some in (example_outputs, outputs))
    if expected != got:
        raise Error(f"The operation {name!r} returned {got}, but its `example_outputs` are {expected}.")
    return outputs


class MultiConvPartialsType(Enum):
    """Format of partial sums."""

    Float = "float"
    Half = "half"


class MultiConvPlanType(Enum):
    """Whether convolutions share the tiles or take turns."""

    Parallel = "parallel"
    Serial = "serial"


class MultiConv:
    """The convolutions inside run at the same time on a device; what they compute stays the same.

    Attributes:
        settings: What was asked for, by name, which changes no number here.
    """

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def availableMemoryProportions(self, value: float | Iterable[float]) -> Self:
        """Store the share of memory of all convolutions, or of each."""
        shares = [value] if isinstance(value, int | float) else list(value)
        for share in shares:
            require_type(share, (int, float), "availableMemoryProportions")
        return self._set(available_memory_proportions=shares)

    def partialsTypes(self, value: Any) -> Self:
        """Store the format of partial sums of all convolutions, or of each.

        Raises:
            AssertionError: If it is none of :class:`MultiConvPartialsType`, ``torch.float`` and ``torch.half``.
        """
        kinds = list(value) if isinstance(value, list | tuple) else [value]
        for kind in kinds:
            if not isinstance(kind, MultiConvPartialsType) and kind not in (torch.float32, torch.float16):
                raise AssertionError(f"partialsTypes takes torch.float or torch.half; {kind!r} was given")
        return self._set(partials_types=kinds)

    def planType(self, value: MultiConvPlanType) -> Self:
        """Store how the convolutions share the tiles."""
        require_type(value, MultiConvPlanType, "planType")
        return self._set(plan_type=value)

    def perConvReservedTiles(self, value: int) -> Self:
        """Store how many tiles each convolution keeps."""
        require_type(value, int, "perConvReservedTiles")
        return self._set(per_conv_reserved_tiles=value)

    def cycleBackOff(self, value: float) -> Self:
        """Store how much slower than the fastest a plan may be."""
        require_type(value, (int, float), "cycleBackOff")
        return self._set(cycle_back_off=value)

    def enableConvDithering(self, value: bool | Iterable[bool]) -> Self:
        """Store whether first tiles are varied, for all convolutions or for each."""
        choices = [value] if isinstance(value, bool) else list(value)
        for choice in choices:
            require_type(choice, bool, "enableConvDithering")
        return self._set(enable_conv_dithering=choices)

    def _set(self, **settings: Any) -> Self:
        self.settings.update(settings)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        """End the group."""


def nearest(x: Tensor, y: Tensor, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """Return the row of ``y`` that is nearest to each row of ``x``, of the same example.

    Args:
        x: Points, ``float [n, features]``; without features, ``float [n]``.
        y: Candidates, ``float [m, features]`` or ``float [m]``.
        batch_x: Example of each point, ``int [n]``; all of one when ``None``.
        batch_y: Example of each candidate, ``int [m]``.

    Returns:
        Indices into ``y``, ``int64 [n]``; the first of those that are equally near.
    """
    points, candidates = (rows.reshape(len(rows), -1) for rows in (x, y))
    distances = (points[:, None] - candidates[None]).square().sum(-1)
    examples_x = torch.zeros(len(x), dtype=torch.long) if batch_x is None else batch_x
    examples_y = torch.zeros(len(y), dtype=torch.long) if batch_y is None else batch_y
    others = examples_x[:, None] != examples_y[None]
    return distances.masked_fill(others, float("inf")).argmin(1)


def fps(src: Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> Tensor:
    """Return rows of each example of which each is the farthest from all before it.

    Args:
        src: Points, ``float [n, features]``.
        ptr: Where the examples begin, and the last ends: as many as examples, and one more.
        ratio: Share of the points that is taken, rounded up.
        random_start: Begin with a point that is drawn, not with the first.

    Returns:
        Indices into ``src``, ``int64``.
    """
    chosen = []
    for start, end in pairwise(ptr):
        points = src[start:end]
        index = torch.randint(end - start, ()) if random_start else torch.tensor(0)
        distances = torch.full((end - start,), float("inf"), dtype=src.dtype)
        # 0.1 * 30 is a little more than 3.
        for _ in range(ceil(round(ratio * (end - start), 6))):
            chosen.append(index + start)
            away = (points - points.index_select(0, index.reshape(1))).square().sum(-1)
            distances = torch.minimum(distances, away)
            index = distances.argmax()
    return torch.stack(chosen)


_before: list[Callable[[], None]] = []
_after: list[Callable[[], None]] = []


class HookHandle:
    """Takes a registered function away again.

    Args:
        hooks: Where it is registered.
        hook: The function.
    """

    def __init__(self, hooks: list[Callable[[], None]], hook: Callable[[], None]) -> None:
        self._hooks = hooks
        self._hook = hook
        hooks.append(hook)

    def remove(self) -> None:
        """Call the function no more."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


def registerPreCompileHook(hook: Callable[[], None]) -> HookHandle:
    """Call ``hook`` before every compilation."""
    return HookHandle(_before, hook)


def registerPostCompileHook(hook: Callable[[], None]) -> HookHandle:
    """Call ``hook`` after every compilation."""
    return HookHandle(_after, hook)


@contextmanager
def compiling() -> Iterator[None]:
    """Call the registered functions around a compilation."""
    for hook in list(_before):
        hook()
    yield
    for hook in list(_after):
        hook()


class Attribute:
    """Sets attributes of the operations inside, for the compiler; nothing here depends on them.

    Args:
        **attributes: By name.
    """

    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes

    def __enter__(self) -> "Attribute":
        return self

    def __exit__(self, *exception: Any) -> None:
        """Leave the operations."""


class NameScope:
    """Names the operations inside, for profiles; nothing here depends on it.

    Args:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        require_type(name, str, "NameScope")
        self.name = name

    def __enter__(self) -> "NameScope":
        return self

    def __exit__(self, *exception: Any) -> None:
        """Leave the operations."""
