"""Half precision as on a device: sums in single precision, and overflow to the largest number instead of infinity."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

LARGEST = torch.finfo(torch.float16).max
_ATEN = torch.ops.aten
# Operations that sum, forward and backward. Torch computes all others in single precision and rounds once.
_SUMS = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.mv.default,
        _ATEN.dot.default,
        _ATEN.bmm.default,
        _ATEN.addmm.default,
        _ATEN.addmv.default,
        _ATEN.baddbmm.default,
        _ATEN.convolution.default,
        _ATEN.convolution_backward.default,
        _ATEN.embedding_dense_backward.default,
        _ATEN.native_layer_norm_backward.default,
        _ATEN.sum.default,
        _ATEN.sum.dim_IntList,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,
    }
)


class HalfArithmetic(TorchDispatchMode):
    """Computes sums over half-precision tensors in single precision, and rounds each result once.

    An IPU does so with its default partials type, single precision. Torch's own half-precision products on the CPU are
    several times slower, and on some processors they round partial sums too.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _SUMS or not any(is_half(argument) for argument in args):
            return func(*args, **(kwargs or {}))
        named = {name: _widen(value) for name, value in (kwargs or {}).items()}
        results = func(*map(_widen, args), **named)
        if isinstance(results, Tensor):
            return round_to_half(results)
        # Attention also returns logarithms, which are in single precision even for half-precision inputs.
        if func is _ATEN._scaled_dot_product_flash_attention_for_cpu.default:
            return round_to_half(results[0]), results[1]
        return tuple(None if result is None else round_to_half(result) for result in results)


# Functions that read the type of one operand to convert another.
_CONVERSIONS = ("to", "type_as")


class HalfNarrowing(TorchFunctionMode):
    """Computes an operation on tensors of half and of single precision in half precision, where torch would not.

    Weights may so stay in single precision, while inputs are in half precision. Tensors that a function changes in
    place, running statistics among them, keep their formats.

    Attributes:
        has_halves: Whether any operation had an operand in half precision.
        has_mixed: Whether any had operands in both.
    """

    has_halves = has_mixed = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formats = {getattr(value, "dtype", None) for value in _operands((*args, *kwargs.values()))}
        if torch.float16 not in formats:
            return func(*args, **kwargs)
        self.has_halves = True
        name = getattr(func, "__name__", "")
        if torch.float32 in formats and not (name.endswith("_") or "batch_norm" in name or name in _CONVERSIONS):
            self.has_mixed = True
            args = map(_narrow, args)
            kwargs = {key: _narrow(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)


def is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is torch.float16


def round_to_half(tensor: Tensor) -> Tensor:
    """Round to half precision; what is too large becomes the largest number."""
    return tensor.clamp(-LARGEST, LARGEST).half()


def _operands(args: Iterable[Any]) -> Iterator[Any]:
    for argument in args:
        yield from argument if isinstance(argument, list | tuple) else (argument,)


def _narrow(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_narrow, value))
    return round_to_half(value) if isinstance(value, Tensor) and value.dtype is torch.float32 else value


def _widen(value: Any) -> Any:
    return value.float() if is_half(value) else value
