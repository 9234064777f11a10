"""One run of a model at compilation: where the loss is, which IPUs it visits, whether it depends on data."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

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

from poptorch_emulator.batches import Arguments
from poptorch_emulator.containers import map_tensors, tensors_in
from poptorch_emulator.errors import Error
from poptorch_emulator.execution import Stage

# All of torch's losses but these end in "_loss".
_OTHER_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "kl_div")
_LOSS_FUNCTIONS = frozenset(
    getattr(home, name)
    for name in dir(functional)
    if name.endswith("_loss") or name in _OTHER_LOSSES
    for home in (functional, torch)
    if hasattr(home, name)
)
# Functions that read a property of a tensor and compute nothing.
_PROPERTY_ACCESS = ("__get__", "__set__", "size", "dim", "stride", "is_floating_point")


class LossTracker:
    """Finds the losses of a forward pass, and which of them are computed from others.

    A loss that another one is computed from is not the one that training starts from: a model may average two
    cross-entropies and mark the average.
    """

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        # By identity. The tensors are kept alive, so that no other tensor gets their identity.
        self._origins: dict[int, tuple[Tensor, frozenset[int]]] = {}
        self._absorbed: set[int] = set()

    def mark(self, loss: Tensor, *sources: Tensor) -> None:
        self._absorbed |= self._origins_of(*sources)
        self._origins[id(loss)] = (loss, frozenset({len(self._losses)}))
        self._losses.append(loss)

    def follow(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        is_reduced = isinstance(result, Tensor) and kwargs.get("reduction") != "none"
        is_loss = function in _LOSS_FUNCTIONS and is_reduced
        if not self._losses and not is_loss:
            return
        inputs = list(tensors_in((args, kwargs)))
        if is_loss:
            self.mark(result, *inputs)
        elif origins := self._origins_of(*inputs):
            for tensor in tensors_in(result):
                self._origins[id(tensor)] = (tensor, origins)

    def final_loss(self) -> Tensor:
        """Return the one loss that no other is computed from."""
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

    def _origins_of(self, *tensors: Tensor) -> frozenset[int]:
        found = (self._origins[id(tensor)][1] for tensor in tensors if id(tensor) in self._origins)
        return frozenset[int]().union(*found)


class PipelinePosition:
    """The IPUs that a forward pass visits, in order."""

    def __init__(self, stages: tuple[Stage, ...] = ()) -> None:
        self._visited: list[int] = []
        self._has_left = False
        # IPUs of the open scoped blocks, the innermost last.
        self._scopes: list[int] = []
        # For blocks that name no IPU.
        self._ipu_of_block = {
            name: number if stage.ipu_id is None else stage.ipu_id
            for number, stage in enumerate(stages)
            for name in stage.blocks
        }
        self._current: int | None = None

    def enter(self, user_id: str | None, ipu_id: int | None) -> int:
        if ipu_id is None:
            ipu_id = self._ipu_of_block.get(str(user_id), self._current or 0)
        self._current = ipu_id
        self._has_left = False
        if not self._visited or self._visited[-1] != ipu_id:
            self._visited.append(ipu_id)
        return ipu_id

    def enter_scope(self, user_id: str | None, ipu_id: int | None) -> None:
        """Begin a scoped block, which may be inside another."""
        self._scopes.append(self.enter(user_id, ipu_id))

    def leave_scope(self) -> None:
        """End a scoped block, and continue the one around it; outside, no block is active until the next begins."""
        self._scopes.pop()
        if self._scopes:
            self.enter(None, self._scopes[-1])
        else:
            self._has_left = True

    def ipu(self) -> int:
        """Return the IPU that an operation here runs on; operations before the first block run on IPU 0."""
        if self._has_left:
            raise Error("No active Block, all the ops must belong to a Block")
        return self.enter(None, 0) if self._current is None else self._current

    @property
    def num_stages(self) -> int:
        """Pipeline stages of the forward pass: one more than the changes of IPU."""
        return max(len(self._visited), 1)

    @property
    def num_ipus(self) -> int:
        return max(self._visited, default=0) + 1


class ProgramTrace(TorchFunctionMode):
    """Records the losses of a model, the IPUs it visits, and which IPU uses which parameter.

    Args:
        parameters: Parameters by name.
        stages: Stages that place blocks without an IPU.
        is_trial: Whether this is compilation, which prints nothing.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], stages: tuple[Stage, ...] = (), *, is_trial: bool = False
    ) -> None:
        super().__init__()
        self.is_trial = is_trial
        self.position = PipelinePosition(stages)
        self.losses = LossTracker()
        self.ipus_of_parameter: dict[str, set[int]] = {}
        self._names = {id(parameter): name for name, parameter in parameters.items()}

    def __enter__(self) -> Self:
        global _current
        self._enclosing = _current
        _current = self
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        global _current
        super().__exit__(*exception)
        _current = self._enclosing

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") not in _PROPERTY_ACCESS:
            ipu = self.position.ipu()
            for tensor in tensors_in((args, kwargs)):
                name = self._names.get(id(tensor))
                if name is not None:
                    self.ipus_of_parameter.setdefault(name, set()).add(ipu)
            self.losses.follow(func, args, kwargs, result)
        return result

    def refuse_split_parameters(self) -> None:
        split = {name: sorted(ipus) for name, ipus in self.ipus_of_parameter.items() if len(ipus) > 1}
        if split:
            listed = "; ".join(f"{name} is used on IPUs {ipus}" for name, ipus in split.items())
            raise Error(
                f"A parameter has to stay on one IPU: {listed}. Put the modules that share it into blocks of the "
                "same `ipu_id`."
            )


_current: ProgramTrace | None = None


def current_trace() -> ProgramTrace | None:
    return _current


# ---- A trace without data ----

_DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


def refuse_data_dependence(model: Callable[..., Any], arguments: Arguments) -> None:
    """Run ``model`` twice on a micro-batch of tensors that have shapes but no values.

    Raises:
        Error: If shapes or branches depend on values.

    Warns:
        UserWarning: If the two runs differ, as with random numbers of Python or numpy: a device would repeat the
            numbers it was compiled with.
    """
    if _operations(model, arguments) != _operations(model, arguments):
        warnings.warn(
            "The model runs other operations, or other constants, each time it is called, as with random numbers of "
            "Python or numpy; a compiled program repeats the draws of its compilation. Draw with torch instead.",
            UserWarning,
            stacklevel=2,
        )


def _operations(model: Callable[..., Any], arguments: Arguments) -> list[str]:
    recorder = _Recorder()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        args, kwargs = map_tensors(lambda tensor: mode.from_tensor(tensor.detach()), arguments)
    try:
        with torch.no_grad(), mode, recorder:
            model(*args, **kwargs)
    except _DATA_DEPENDENT as error:
        raise Error(
            f"The model cannot be compiled: a shape or a branch depends on the values of a tensor ({error}). Compute "
            "with fixed shapes, for example with `torch.where` instead of indexing by a mask."
        ) from error
    return recorder.operations


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        constants = [argument for argument in args if isinstance(argument, bool | int | float)]
        self.operations.append(f"{func}{constants}")
        return func(*args, **(kwargs or {}))


def call_with_values(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of the host, which may read values; in a trace without data its tensors hold zeros."""
    mode = next((leaf.fake_mode for leaf in tensors_in((args, kwargs)) if isinstance(leaf, FakeTensor)), None)
    if mode is None:
        return function(*args, **kwargs)
    with unset_fake_temporarily():
        args, kwargs = map_tensors(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype), (args, kwargs))
        result = function(*args, **kwargs)
    return map_tensors(mode.from_tensor, result)
