"""Models whose forward and backward run in ONNX Runtime."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch._dynamo
from torch import nn

from portico.ort.compiler.backend import make_backend
from portico.ort.runtime.session import SessionSettings

Model = TypeVar("Model", bound=nn.Module)


def compile(  # noqa: A001 - the name that torch.compile has taught
    model: Model, *, settings: SessionSettings | None = None, strict: bool = False
) -> Model:
    """Make ``model`` run forward, and its backward, in ONNX Runtime; in place, weights and names stay.

    The graphs are built at the first call in training and at the first without gradients, for tensors of any size.

    Args:
        model: Any module.
        settings: How ONNX Runtime runs.
        strict: Refuse a model of which a part would run in torch.

    Returns:
        ``model`` itself.
    """
    compiled = torch.compile(model._call_impl, backend=make_backend(settings, strict=strict), dynamic=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        # Sizes are symbols from the start, so that the second batch builds nothing; numbers such as the probability
        # of a dropout stay numbers.
        with torch._dynamo.config.patch(specialize_float=True):
            return compiled(*args, **kwargs)

    model._compiled_call_impl = call
    return model


def is_compiled(model: nn.Module) -> bool:
    """Tell whether calls of ``model`` go through a compiler."""
    return model._compiled_call_impl is not None


def restore(model: nn.Module) -> None:
    """Let ``model`` run in torch again."""
    model._compiled_call_impl = None


@contextmanager
def running_in_torch(model: nn.Module) -> Iterator[None]:
    """Let ``model`` run in torch for a while."""
    compiled, model._compiled_call_impl = model._compiled_call_impl, None
    try:
        yield
    finally:
        model._compiled_call_impl = compiled
