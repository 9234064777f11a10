"""How the calls of an operator are drawn, and how equal the results have to be."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st


@dataclass(frozen=True)
class Call:
    """One call of an operator."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Agreement:
    """How equal the results in ONNX Runtime and in ATen are.

    Args:
        ulps: Largest difference, in the precision of the result's dtype, relative to the number or absolute; ``None``
            for bits that are the same.
        zeros_have_signs: Whether zeros are equal only with the same sign.
        in_float32: Whether float64, too, is only as precise as float32: ONNX keeps numbers of such operators in it.
        values: Whether elements are compared at all.
    """

    ulps: float | None = None
    zeros_have_signs: bool = True
    in_float32: bool = False
    values: bool = True

    def check(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Compare two results; dtype and shape have to be the same always."""
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if not self.values:
            return
        if not expected.is_floating_point():
            assert torch.equal(found, expected), f"{found} is not {expected}"
            return
        precision = torch.float32 if self.in_float32 and expected.dtype is torch.float64 else expected.dtype
        ulp = torch.finfo(precision).eps * (self.ulps or 0)
        torch.testing.assert_close(found, expected, rtol=ulp, atol=ulp, equal_nan=True)
        if self.zeros_have_signs:
            zeros = (found == 0) & (expected == 0)
            signs = found.signbit()[zeros], expected.signbit()[zeros]
            assert torch.equal(*signs), f"{found} has zeros of other signs than {expected}"


@dataclass(frozen=True)
class Case:
    """How one operator is called, and how its results are compared."""

    calls: st.SearchStrategy[Call]
    agreement: Agreement


CASES: dict[Any, Case] = {}


def case(*targets: Any, **agreement: Any) -> Callable[[Callable[..., Call]], Callable[..., Call]]:
    """Register a function that draws calls of operators, given ``draw`` and the operator."""

    def register(function: Callable[..., Call]) -> Callable[..., Call]:
        for target in targets:
            add(target, calls=st.composite(function)(target), **agreement)
        return function

    return register


def add(*targets: Any, calls: st.SearchStrategy[Call], **agreement: Any) -> None:
    """Register the calls of operators."""
    for target in targets:
        assert target not in CASES, f"{target} has a case already"
        CASES[target] = Case(calls, Agreement(**agreement))


@st.composite
def of(draw: Any, tensors: Any, *rest: Any, options: Any = None) -> Call:
    """Draw a call with one tensor or several, then further arguments.

    Args:
        draw: Given by hypothesis.
        tensors: Strategy of the tensor or the tensors.
        rest: Strategy of each further argument, or a function that returns one for the tensors.
        options: Strategy of the dict of named arguments, or a function that returns one for the tensors.
    """
    drawn = draw(tensors)
    given = tuple(drawn) if isinstance(drawn, list | tuple) else (drawn,)

    def chosen(argument: Any) -> Any:
        return draw(argument if isinstance(argument, st.SearchStrategy) else argument(*given))

    return Call((*given, *map(chosen, rest)), {} if options is None else chosen(options))


def maybe(**options: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of these named arguments, or none of them."""
    return st.just({}) | st.fixed_dictionaries(options)
