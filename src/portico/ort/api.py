"""Models whose forward and backward run in ONNX Runtime."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, Unsupported, UserError
from torch.fx.experimental import _config as fx_config

from portico.errors import InputError, InputTypeError
from portico.ort.report import Report
from portico.ort.settings import SessionSettings, require

Model = TypeVar("Model", bound=nn.Module)

# Torch's own limit of 8 is reached by a generation: it has graphs for the first token, the second and the others, each
# for one row and for several. What is beyond the limit would silently run in torch.
_MOST_GRAPHS = 64
# The last two are what transformers adds to every logger.
_LOG_METHODS = ("debug", "info", "warning", "warning_advice", "warning_once")


def compile(
    model: Model, *, settings: SessionSettings | None = None, strict: bool = False, report: Report | None = None
) -> Model:
    """Make ``model`` run forward, and its backward, in ONNX Runtime; in place, weights and names stay.

    The graphs are built at the first call in training and at the first without gradients, for tensors of any size.
    A model that was compiled before with the same options keeps its graphs.

    Args:
        model: Any module.
        settings: How ONNX Runtime runs.
        strict: Refuse a model of which a part would run in torch.
        report: Where to take note of what is built; by default a new one.

    Returns:
        ``model`` itself.

    Raises:
        InputError: If ONNX Runtime is not installed (a ``TypeError`` too if ``model`` is no module).
    """
    require()
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"`model` is a {type(model).__name__}; give a `torch.nn.Module`.")
    options = (settings or SessionSettings(), strict)
    call = model._compiled_call_impl
    if not isinstance(call, CompiledCall) or call.options != options:
        # This name of torch's makes calls of the module go elsewhere, and is not copied or pickled with it.
        model._compiled_call_impl = call = CompiledCall(model, *options, report or Report())
    call.is_on = True
    return model


def compiled_call(model: nn.Module) -> "CompiledCall | None":
    """Return what calls of ``model`` go through, or ``None`` if it was never compiled."""
    call = model._compiled_call_impl
    return call if isinstance(call, CompiledCall) else None


def restore(model: nn.Module) -> None:
    """Let ``model`` run in torch again; its graphs are kept for the next :func:`compile`."""
    call = compiled_call(model)
    if call is not None:
        call.is_on = False


@contextmanager
def running_in_torch(model: nn.Module) -> Iterator[None]:
    """Let ``model`` run in torch for a while."""
    call = compiled_call(model)
    was_on = call is not None and call.is_on
    restore(model)
    try:
        yield
    finally:
        if call is not None:
            call.is_on = was_on


class CompiledCall:
    """Calls of a module in ONNX Runtime.

    Args:
        model: The module.
        settings: How ONNX Runtime runs.
        strict: Refuse a model of which a part would run in torch.
        report: Where to take note of what is built.

    Attributes:
        is_on: Whether calls run in ONNX Runtime, or in torch for the time being.
    """

    def __init__(self, model: nn.Module, settings: SessionSettings, strict: bool, report: Report) -> None:
        from portico.ort.compiler.backend import make_backend

        self.options = (settings, strict)
        self.is_on = True
        self.report = report
        self._in_torch = model._call_impl
        backend = make_backend(settings, strict=strict, report=report)
        self._compiled = torch.compile(_own_function(model), backend=backend, dynamic=True, fullgraph=strict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if not self.is_on:
            return self._in_torch(*args, **kwargs)
        with _tracing_options(), _plain_errors(), self.report.counting_breaks():
            return self._compiled(*args, **kwargs)


def _own_function(model: nn.Module) -> Callable[..., Any]:
    """Return calls of ``model`` as a function whose code is its own.

    Torch skips code of its own files, such as that of ``nn.Sequential``; and for one piece of code it keeps a limited
    number of graphs, which models that share it would use up.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)

    return FunctionType(call.__code__.replace(), globals(), "call", None, call.__closure__)


@contextmanager
def _tracing_options() -> Iterator[None]:
    # Numbers such as the probability of a dropout stay numbers. A line of a log, which models write once, is not worth
    # a cut through the graph. Sizes that are equal by chance, as those of a batch and of a layer, keep symbols of
    # their own: one of them is fixed by the weights.
    ignored = {getattr(logging.Logger, name) for name in _LOG_METHODS if hasattr(logging.Logger, name)}
    options = {
        "specialize_float": True,
        "ignore_logger_methods": ignored,
        "recompile_limit": _MOST_GRAPHS,
    }
    no_duck_shapes = fx_config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
    with torch._dynamo.config.patch(options), no_duck_shapes:
        yield


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Show the error of a model that cannot be compiled instead of the compiler's account of it."""
    try:
        yield
    except BackendCompilerFailed as error:
        if isinstance(error.inner_exception, InputError):
            raise error.inner_exception from None
        raise
    except (Unsupported, UserError) as error:
        raise InputError(
            f"`strict=True`, but torch cannot trace the model in one piece: {error} Change that line of the model, or "
            "leave `strict` out to run it in several pieces."
        ) from error
    except FailOnRecompileLimitHit as error:
        raise InputError(
            f"`strict=True`, but the model was traced {_MOST_GRAPHS} times, since it changes a number that torch "
            "takes for a constant, which torch's warning names; make it a tensor, or leave `strict` out to run it in "
            "torch from here on."
        ) from error
