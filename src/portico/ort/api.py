"""Compile a model so that its forward and backward run in ONNX Runtime, and switch it back."""

import inspect
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import nn

from portico.compat.releases import refuse_before
from portico.compat.transformers import make_deberta_traceable
from portico.errors import InputError, InputTypeError
from portico.ort.report import Report
from portico.ort.settings import SessionSettings, require
from portico.ort.torch_compat import dynamo_config, dynamo_errors, fx_config, mark_static

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)

# Generation exceeds torch's limit of 8: it has graphs for the first, the second and later tokens, each for one row and
# for several. Beyond the limit, torch would silently run the model in eager mode.
_MOST_GRAPHS = 64
# transformers adds the last two to every logger.
_LOG_METHODS = ("debug", "info", "warning", "warning_advice", "warning_once")


def compile(
    model: Model, *, settings: SessionSettings | None = None, strict: bool = False, report: Report | None = None
) -> Model:
    """Make the forward and backward of ``model`` run in ONNX Runtime, in place: weights and names stay.

    Graphs for tensors of any size are built at the first call in training and at the first without gradients. A model
    that is compiled again with the same options keeps its graphs.

    Args:
        model: Any module.
        settings: How ONNX Runtime runs.
        strict: Refuse a model that would run partly in torch.
        report: Records what is built; by default a new one.

    Returns:
        ``model`` itself.

    Raises:
        InputError: If ONNX Runtime is not installed, or ``model`` is not a module (then also a ``TypeError``).
    """
    require()
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"`model` is a {type(model).__name__}; give a `torch.nn.Module`.")
    if any(type(part).__module__.endswith(".deberta.modeling_deberta") for part in model.modules()):
        make_deberta_traceable()
    options = (settings or SessionSettings(), strict)
    call = model._compiled_call_impl
    if not isinstance(call, CompiledCall) or call.options != options:
        # `nn.Module.__call__` calls this attribute if it is set; it is not copied or pickled with the module.
        model._compiled_call_impl = call = CompiledCall(model, *options, report or Report())
        _warn_of_recurrent_layers(model, call.report)
    call.is_on = True
    return model


def _warn_of_recurrent_layers(model: nn.Module, report: Report) -> None:
    layers = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.RNNBase)]
    # A model and its loss, and an encoder, are compiled again with the report of the model.
    if layers and not (dynamo_config.allow_rnn or report.has_recurrent_layers):
        report.has_recurrent_layers = True
        logger.warning(
            "torch does not trace %s: the `forward` that calls it runs in torch, not in ONNX Runtime; use another "
            "layer, or set `torch._dynamo.config.allow_rnn = True`, which is experimental and builds graphs for each "
            "length of the inputs.",
            ", ".join(f"`{name}` ({type(part).__name__})" for name, part in layers),
        )


def get_compiled_call(model: nn.Module) -> "CompiledCall | None":
    """Return the object that handles calls of ``model``, or ``None`` if it was never compiled."""
    call = model._compiled_call_impl
    return call if isinstance(call, CompiledCall) else None


def restore(model: nn.Module) -> None:
    """Make ``model`` run in torch again, keeping its graphs for the next :func:`compile`."""
    call = get_compiled_call(model)
    if call is not None:
        call.is_on = False


@contextmanager
def running_in_torch(*models: nn.Module) -> Iterator[None]:
    """Make ``models`` run in torch within the block."""
    calls = [call for call in map(get_compiled_call, models) if call is not None and call.is_on]
    for call in calls:
        call.is_on = False
    try:
        yield
    finally:
        for call in calls:
            call.is_on = True


class CompiledCall:
    """Calls of a module in ONNX Runtime, or in torch while ``is_on`` is false; see :func:`compile`."""

    def __init__(self, model: nn.Module, settings: SessionSettings, strict: bool, report: Report) -> None:
        from portico.ort.compiler.backend import make_backend

        self.options = (settings, strict)
        self.is_on = True
        self.report = report
        self._cannot_be_traced = False
        # As transformers' `use_experts_implementation` marks them.
        experts: list[Any] = [part for part in model.modules() if hasattr(part, "is_transposed")]
        self._groups_experts = any(
            getattr(getattr(part, "config", None), "_experts_implementation", None) == "grouped_mm" for part in experts
        )
        self._argument_names = tuple(inspect.signature(model.forward).parameters)
        self._first_image_sizes: dict[str, torch.Size] = {}
        self._in_torch = model._call_impl
        backend = make_backend(settings, strict=strict, report=report)

        def call(*args: object, **kwargs: object) -> Any:
            return model._call_impl(*args, **kwargs)

        # Dynamo does not trace torch's own files, such as `nn.Sequential`, so a function of this file calls the model.
        # Dynamo also limits the number of graphs of a code object, so each model needs a copy of the code.
        own = FunctionType(call.__code__.replace(), globals(), "call", None, call.__closure__)
        self._compiled = torch.compile(own, backend=backend, dynamic=True, fullgraph=strict)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if not self.is_on or self._cannot_be_traced:
            return self._in_torch(*args, **kwargs)
        if self._groups_experts and torch.is_grad_enabled():
            # Until then torch fails at the backward pass of their products, whose sizes depend on the data.
            refuse_before("5.23", "Training a mixture of experts in ONNX Runtime")
        self._fix_image_sizes(zip(self._argument_names, args, strict=False))
        self._fix_image_sizes(kwargs.items())
        # What a model draws before the tracer fails is drawn again.
        random_state = None if self.report.graphs else torch.get_rng_state()
        try:
            with _tracing_options(), _plain_errors(), self.report.counting_breaks():
                return self._compiled(*args, **kwargs)
        except dynamo_errors.InternalTorchDynamoError as error:
            if self.options[1]:
                raise InputError(
                    f"`strict=True`, but torch's tracer fails at this model: {error} Change that line of the model, "
                    "or leave `strict` out to run the model in torch."
                ) from error
            logger.warning("Torch's tracer fails at this model, which runs in torch from here on: %s", error)
            self._cannot_be_traced = True
            if random_state is not None:
                torch.set_rng_state(random_state)
            return self._in_torch(*args, **kwargs)

    def _fix_image_sizes(self, inputs: Iterable[tuple[str, object]]) -> None:
        """Let torch trace images with constant sizes as long as they have one size; a second gets symbols for any.

        Windows of symbolic sizes, as in Swin, keep the symbolic algebra busy for minutes. Masks follow the length of a
        batch.
        """
        for name, value in inputs:
            if not isinstance(value, torch.Tensor) or "mask" in name:
                continue
            if value.dim() == 4 and value.is_floating_point():
                sizes = value.shape[1:]
                if self._first_image_sizes.setdefault(name, sizes) == sizes:
                    mark_static(value, [1, 2, 3])


@contextmanager
def _tracing_options() -> Iterator[None]:
    options = {
        # Numbers such as the probability of a dropout stay constants.
        "specialize_float": True,
        # A log message, which models write once, is not worth a graph break.
        "ignore_logger_methods": {getattr(logging.Logger, name) for name in _LOG_METHODS},
        "recompile_limit": _MOST_GRAPHS,
    }
    # Sizes that are equal by chance, such as of a batch and of a layer, must not share a symbol: the weights fix one.
    with dynamo_config.patch(options), fx_config.patch({"use_duck_shape": False}):
        yield


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise our own error, or one that names the remedy, instead of the compiler's wrapper."""
    try:
        yield
    except dynamo_errors.BackendCompilerFailed as error:
        if isinstance(error.inner_exception, InputError):
            raise error.inner_exception from None
        raise
    except (dynamo_errors.Unsupported, dynamo_errors.UserError) as error:
        raise InputError(
            f"`strict=True`, but torch cannot trace the model in one piece: {error} Change that line of the model, or "
            "leave `strict` out to run it in several pieces."
        ) from error
    except dynamo_errors.FailOnRecompileLimitHit as error:
        raise InputError(
            f"`strict=True`, but the model was traced {_MOST_GRAPHS} times, since it changes a number that torch "
            "takes for a constant, which torch's warning names; make it a tensor, or leave `strict` out to run it in "
            "torch from here on."
        ) from error
