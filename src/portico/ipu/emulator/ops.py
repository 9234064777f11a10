"""Operations with a meaning of their own on IPUs; here they compute what they stand for."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portico.ipu.emulator.enums import MatMulSerializationMode
from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.tracing.losses import current_losses


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
