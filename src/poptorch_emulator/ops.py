"""Operations of `poptorch` inside a model: they compute their result, or only carry hints that do not affect it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from itertools import pairwise
from math import ceil
from typing import Any

import torch
from torch import Tensor

from poptorch_emulator.enums import MatMulSerializationMode, OverlapMode
from poptorch_emulator.errors import Error, require_type
from poptorch_emulator.faults import host_access
from poptorch_emulator.machine import isRunningOnIpu
from poptorch_emulator.options import Option, OptionsGroup
from poptorch_emulator.tracing import call_with_values, current_trace

# ---- Losses and control flow ----


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
    reductions: dict[Any, Callable[[Tensor], Tensor]] = {"sum": Tensor.sum, "mean": Tensor.mean, "none": Tensor.clone}
    if name not in reductions:
        raise Error(f"Unsupported reduction type {reduction!r} of identity_loss; use 'sum', 'mean' or 'none'.")
    loss = reductions[name](x)
    trace = current_trace()
    if trace is not None:
        trace.losses.mark(loss, x)
    return loss


def for_loop(count: int, body: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Apply ``body`` to its own results ``count`` times.

    Raises:
        Error: If ``inputs`` is not a list, or ``body`` returns another number of tensors.
    """
    if not isinstance(inputs, list):
        raise Error(f"poptorch.for_loop takes a list of tensors; a {type(inputs).__name__} was given.")
    values = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        values = _wrap_in_list(body(*values))
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
    """Apply one of two functions, depending on a computed condition."""
    body, inputs = (then_body, then_inputs) if bool(condition) else (else_body, else_inputs)
    return _wrap_in_list(body(*inputs))


def _wrap_in_list(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, list | tuple) else [result]


# ---- Tensors ----


def serializedMatMul(
    lhs: Tensor, rhs: Tensor, mode: MatMulSerializationMode, factor: int = 0, keep_precision: bool = False
) -> Tensor:
    """Return the matrix product, which a device computes piece by piece.

    Raises:
        AssertionError: If ``mode`` has another type, or ``factor`` does not divide the dimension to split.
    """
    require_type(mode, MatMulSerializationMode, "mode")
    sizes = {
        MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
        MatMulSerializationMode.ReducingDim: lhs.shape[-1],
        MatMulSerializationMode.OutputChannels: rhs.shape[-1],
    }
    size = sizes.get(mode)
    if size is not None and (factor < 1 or size % factor):
        raise AssertionError(f"{mode.name} has {size} elements, which is not a multiple of the factor {factor}")
    return torch.matmul(lhs, rhs)


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int = 1) -> Tensor:
    """Return ``size`` elements of a dimension, from a computed start."""
    index = start.reshape(()).long() + torch.arange(0, size, step, device=tensor.device)
    return tensor.index_select(dim, index)


def dynamic_update(input: Tensor, src: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """Return ``input`` with ``size`` elements of a dimension replaced, from a computed start."""
    index = start.reshape(()).long() + torch.arange(size, device=input.device)
    return input.index_copy(dim, index, src)


def nearest(x: Tensor, y: Tensor, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """Return the row of ``y`` that is nearest to each row of ``x`` in the same example.

    Args:
        x: Points, ``float [n, features]``; without features, ``float [n]``.
        y: Candidates, ``float [m, features]`` or ``float [m]``.
        batch_x: Example of each point, ``int [n]``; one example if ``None``.
        batch_y: Example of each candidate, ``int [m]``.

    Returns:
        Indices into ``y``, ``int64 [n]``; the first of equally near rows.
    """
    points, candidates = (rows.reshape(len(rows), -1) for rows in (x, y))
    distances = (points[:, None] - candidates[None]).square().sum(-1)
    examples_x = torch.zeros(len(x), dtype=torch.long) if batch_x is None else batch_x
    examples_y = torch.zeros(len(y), dtype=torch.long) if batch_y is None else batch_y
    others = examples_x[:, None] != examples_y[None]
    return distances.masked_fill(others, float("inf")).argmin(1)


def fps(src: Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> Tensor:
    """Sample rows of each example by farthest-point sampling: each is the farthest from all before it.

    Args:
        src: Points, ``float [n, features]``.
        ptr: Start of every example, and the end of the last.
        ratio: Share of the points to sample, rounded up.
        random_start: Begin with a random point rather than with the first.

    Returns:
        Indices into ``src``, ``int64``.
    """
    chosen = []
    for start, end in pairwise(ptr):
        points = src[start:end]
        index = torch.randint(end - start, ()) if random_start else torch.tensor(0)
        distances = torch.full((end - start,), float("inf"), dtype=src.dtype)
        # Rounded first, because 0.1 * 30 is slightly more than 3.
        for _ in range(ceil(round(ratio * (end - start), 6))):
            chosen.append(index + start)
            away = (points - points.index_select(0, index.reshape(1))).square().sum(-1)
            distances = torch.minimum(distances, away)
            index = distances.argmax()
    return torch.stack(chosen)


def ipu_print_tensor(
    tensor: Tensor, title: str = "", print_gradient: bool = True, summarize_threshold: int = 1000, **layout: Any
) -> Tensor:
    """Print ``tensor`` when it is computed, and its gradient when that is, and return it."""
    trace = current_trace()
    if trace is None or not trace.is_trial:
        print(f"{title or 'tensor'}: {tensor}")
        if print_gradient and tensor.requires_grad:
            tensor.register_hook(lambda gradient: print(f"{title or 'tensor'}_gradient: {gradient}"))
    return tensor


# ---- Code of the user ----


class CPU:
    """A function that runs on the host, in the middle of a program for inference.

    Args:
        layer_to_call: The function, or module.
        ID: Unique name.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        self._layer_to_call = layer_to_call
        self.ID = ID

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the result of the function.

        Raises:
            Error: In a program that trains.
        """
        if isRunningOnIpu() and torch.is_grad_enabled():
            raise Error(
                f"CPU operations are only supported in inference graphs; the model calls {self.ID!r} while it trains. "
                "Compute with torch's operations there."
            )
        with host_access():
            return call_with_values(self._layer_to_call, inputs, kwargs)


_custom_ops: dict[tuple[str, str], Callable[..., Any]] = {}


def register_custom_op(name: str, domain: str, function: Callable[..., Any]) -> None:
    """Let :func:`custom_op` compute an operation by a Python function of its inputs and, by name, its attributes."""
    _custom_ops[domain, name] = function


def custom_op(
    inputs: list[Tensor] | tuple[Tensor, ...],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: list[Tensor] | tuple[Tensor, ...],
    attributes: dict[str, Any] | None = None,
) -> list[Tensor]:
    """Return the outputs of an operation that the user registered.

    Args:
        inputs: Its inputs.
        name: Its name.
        domain: Its domain.
        domain_version: Ignored.
        example_outputs: Tensors with the shapes and types of the outputs.
        attributes: Constants.

    Raises:
        Error: If the operation is not registered, or its outputs do not match ``example_outputs``.
    """
    function = _custom_ops.get((domain, name))
    if function is None:
        raise Error(
            f"There is no operation {name!r} of the domain {domain!r}: compiled code does not run on the emulator. "
            "Register a Python function with `poptorch_emulator.register_custom_op`, or use torch's operations."
        )
    outputs = _wrap_in_list(function(*inputs, **(attributes or {})))
    expected, got = ([(tuple(output.shape), output.dtype) for output in some] for some in (example_outputs, outputs))
    if expected != got:
        raise Error(f"The operation {name!r} returned {got}, but its `example_outputs` are {expected}.")
    return outputs


# ---- Hints to the compiler, on which no result depends ----


def nop(tensor: Tensor) -> Tensor:
    """Return ``tensor``."""
    return tensor


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Return the tensors; a device keeps them, and recomputes what lies between two checkpoints."""
    return tensors[0] if len(tensors) == 1 else tensors


def set_available_memory(tensor: Tensor, available_memory_proportion: float) -> Tensor:
    """Return ``tensor``; on a device, its operation may use that share of memory."""
    return tensor


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Return the inputs; a device loads them while it computes."""
    return input_tensors


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Return the outputs; a device stores them while it computes."""
    return output_tensors


class Attribute(AbstractContextManager["Attribute"]):
    """Sets attributes of the operations inside a ``with`` block, for the compiler.

    Args:
        **attributes: Values by name.
    """

    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes

    def __exit__(self, *exception: Any) -> None: ...


class NameScope(AbstractContextManager["NameScope"]):
    """Names the operations inside a ``with`` block, for profiles.

    Args:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        require_type(name, str, "NameScope")
        self.name = name

    def __exit__(self, *exception: Any) -> None: ...


class MultiConvPartialsType(Enum):
    Float = "float"
    Half = "half"


class MultiConvPlanType(Enum):
    """Whether convolutions share the tiles or take turns."""

    Parallel = "parallel"
    Serial = "serial"


def _require_partials_type(value: Any, name: str) -> None:
    if not isinstance(value, MultiConvPartialsType) and value not in (torch.float32, torch.float16):
        raise AssertionError(f"{name} takes torch.float or torch.half; {value!r} was given")


class MultiConv(OptionsGroup, AbstractContextManager["MultiConv"]):
    """Lets the convolutions inside a ``with`` block run at the same time; setters take one value, or one for each."""

    availableMemoryProportions = Option(
        "available_memory_proportions", (int, float), parameter="value", takes_each=True
    )
    partialsTypes = Option("partials_types", _require_partials_type, parameter="value", takes_each=True)
    planType = Option("plan_type", MultiConvPlanType, parameter="value")
    perConvReservedTiles = Option("per_conv_reserved_tiles", int, parameter="value")
    cycleBackOff = Option("cycle_back_off", (int, float), parameter="value")
    enableConvDithering = Option("enable_conv_dithering", bool, parameter="value", takes_each=True)

    def __exit__(self, *exception: Any) -> None: ...
