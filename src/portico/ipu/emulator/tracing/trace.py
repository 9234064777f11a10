"""One run of a model that watches every torch function."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.tracing.losses import LossTracker, tensors_in, tracked
from portico.ipu.emulator.tracing.position import PipelinePosition, followed

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
    """Return whether a torch function computes, rather than reads a property."""
    return getattr(function, "__name__", "") not in _PROPERTY_ACCESS
