"""Which of a model's tensors is the loss that training starts from."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from poptorch_emulator.blocks import PipelinePosition, followed
from poptorch_emulator.containers import map_structure, tensors_in
from poptorch_emulator.errors import Error

_LOSS_NAMES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
)
_LOSS_FUNCTIONS = frozenset(
    getattr(home, name) for name in _LOSS_NAMES for home in (functional, torch) if hasattr(home, name)
)


class LossTracker:
    """Finds the losses of a forward pass, and which of them is computed from others.

    A loss that goes into another is not the one that training starts from: a model may average two cross-entropies
    and mark the average.
    """

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        # By identity; the tensors are held, so that no other gets their identity.
        self._origins: dict[int, tuple[Tensor, frozenset[int]]] = {}
        self._absorbed: set[int] = set()

    def mark(self, loss: Tensor, origins: frozenset[int] = frozenset()) -> None:
        """Take ``loss`` for a loss that was computed from those in ``origins``."""
        self._absorbed |= origins
        self._origins[id(loss)] = (loss, frozenset({len(self._losses)}))
        self._losses.append(loss)

    def mark_identity(self, loss: Tensor, source: Tensor) -> None:
        """Take ``loss`` for one that the user marked, computed from ``source``."""
        self.mark(loss, self._origins_of(source))

    def see(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follow losses through the call of a torch function."""
        is_loss = function in _LOSS_FUNCTIONS and _is_reduced(kwargs, result)
        if not self._losses and not is_loss:
            return
        inputs = tensors_in((args, kwargs))
        origins: frozenset[int] = frozenset().union(*(self._origins_of(tensor) for tensor in inputs))
        if is_loss:
            self.mark(result, origins)
        elif origins:
            for tensor in tensors_in(result):
                self._origins[id(tensor)] = (tensor, origins)

    def final_loss(self) -> Tensor:
        """Return the one loss that goes into no other.

        Raises:
            Error: If there is none, or there are several.
        """
        final = [loss for number, loss in enumerate(self._losses) if number not in self._absorbed]
        if not final:
            raise Error(
                "Couldn't find a loss in graph! Compute one of torch's losses in the model, or wrap the model's own "
                "in poptorch.identity_loss."
            )
        if len(final) > 1:
            raise Error(
                "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss "
                "in poptorch.identity_loss."
            )
        return final[0]

    def _origins_of(self, tensor: Tensor) -> frozenset[int]:
        return self._origins.get(id(tensor), (None, frozenset[int]()))[1]


def _is_reduced(kwargs: Any, result: Any) -> bool:
    return isinstance(result, Tensor) and (kwargs or {}).get("reduction") != "none"


_current: LossTracker | None = None


def current_losses() -> LossTracker | None:
    """Return the tracker of the forward pass that is running, if one is."""
    return _current


@contextmanager
def tracked(losses: LossTracker) -> Iterator[None]:
    """Let losses report to ``losses``."""
    global _current
    enclosing, _current = _current, losses
    try:
        yield
    finally:
        _current = enclosing


_PROPERTY_ACCESS = ("__get__", "__set__", "size", "dim", "stride", "is_floating_point")


class ProgramTrace(TorchFunctionMode):
    """Notes the losses of a model, the IPUs it visits, and which IPU uses which parameter.

    Args:
        position: Follows the blocks.
        parameters: The model's parameters by name.
    """

    def __init__(self, position: PipelinePosition, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.position = position
        self.losses = LossTracker()
        self.ipus_of_parameter: dict[str, set[int]] = {}
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._contexts = (followed(position), tracked(self.losses))

    def __enter__(self) -> "ProgramTrace":
        for context in self._contexts:
            context.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        for context in reversed(self._contexts):
            context.__exit__(*exception)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``, and note what it says about the program."""
        result = func(*args, **(kwargs or {}))
        if _computes(func):
            ipu = self.position.ipu()
            for tensor in tensors_in((args, kwargs)):
                name = self._names.get(id(tensor))
                if name is not None:
                    self.ipus_of_parameter.setdefault(name, set()).add(ipu)
            self.losses.see(func, args, kwargs, result)
        return result

    def refuse_split_parameters(self) -> None:
        """Refuse parameters that several IPUs use: each lies on one.

        Raises:
            Error: Names them.
        """
        split = {name: sorted(ipus) for name, ipus in self.ipus_of_parameter.items() if len(ipus) > 1}
        if split:
            listed = "; ".join(f"{name} is used on IPUs {ipus}" for name, ipus in split.items())
            raise Error(
                f"A parameter has to stay on one IPU: {listed}. Put the modules that share it into blocks of the "
                "same `ipu_id`."
            )


def _computes(function: Any) -> bool:
    """Tell whether a torch function computes, rather than reads a property."""
    return getattr(function, "__name__", "") not in _PROPERTY_ACCESS


_REFUSED = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


def refuse_data_dependence(model: Callable[..., Any], arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Run ``model`` on tensors that have shapes and no values, twice.

    Args:
        model: The model.
        arguments: Positional and named arguments of a micro-batch.

    Raises:
        Error: If shapes or branches depend on values.

    Warns:
        UserWarning: If the two runs differ, as with Python's or numpy's random numbers: a device would go on with the
            ones it was compiled with.
    """
    first, second = _operations(model, arguments), _operations(model, arguments)
    if first != second:
        warnings.warn(
            "The model runs other operations, or other constants, each time it is called, as with random numbers of "
            "Python or numpy; a compiled program repeats those of its compilation. Draw with torch instead.",
            UserWarning,
            stacklevel=2,
        )


def _operations(model: Callable[..., Any], arguments: Any) -> list[str]:
    recorder = _Recorder()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        args, kwargs = map_structure(
            lambda leaf: mode.from_tensor(leaf.detach()) if isinstance(leaf, Tensor) else leaf, arguments
        )
    try:
        with torch.no_grad(), mode, recorder:
            model(*args, **kwargs)
    except _REFUSED as error:
        raise Error(
            f"The model cannot be compiled: a shape or a branch depends on the values of a tensor ({error}). Compute "
            "with fixed shapes, for example with `torch.where` instead of indexing by a mask."
        ) from error
    return recorder.operations


def with_values(function: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of the host, which may read values, also in a trace where tensors have none.

    Args:
        function: The function; in a trace it gets zeros.
        inputs: Its arguments.
        kwargs: Its named arguments.
    """
    mode = next((leaf.fake_mode for leaf in tensors_in((inputs, kwargs)) if isinstance(leaf, FakeTensor)), None)
    if mode is None:
        return function(*inputs, **kwargs)
    with unset_fake_temporarily():
        args, named = map_structure(_zeros, (inputs, kwargs))
        result = function(*args, **named)
    return map_structure(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, result)


def _zeros(leaf: Any) -> Any:
    return torch.zeros(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, Tensor) else leaf


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        constants = [argument for argument in args if isinstance(argument, bool | int | float)]
        self.operations.append(f"{func}{constants}")
        return func(*args, **(kwargs or {}))
