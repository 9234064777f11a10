"""A model as one graph that computes its outputs from its inputs, to be written to a file."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from portico.errors import InputError
from portico.ort.packages import require

# What an export checks about its inputs; they compute nothing.
_ASSERTIONS = {
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
}
# Rows, tokens, and what there is of each token.
_LARGEST_RANK_OF_SEQUENCES = 3


def exported(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[ExportedProgram, list[str]]:
    """Trace ``model``, in evaluation mode, for inputs of which rows and length are dynamic.

    These are the first two dimensions, and of images, which have four or more, the first alone.

    Args:
        model: A model that takes its inputs by name.
        inputs: Example inputs by name, at least 2 rows.

    Returns:
        The program, and the names of its outputs: those that the model gives them, or ``output_0`` and so on.

    Raises:
        InputError: If the model cannot be called with ``inputs``, cannot be traced, or uses an operator that has no
            lowering; or if ONNX Runtime is not installed.
    """
    require()
    wrapper = _TensorsOnly(model)
    was_training = model.training
    try:
        wrapper.eval()
        with torch.no_grad():
            output_names = _output_names(wrapper, inputs)
            program = _traced(wrapper, inputs)
    finally:
        model.train(was_training)
    _drop_assertions(program)
    _check(program)
    return program, output_names


class _TensorsOnly(nn.Module):
    """Calls a model and returns the tensors among its outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def named(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        # Past the place where calls go to a compiler.
        outputs = self.model._call_impl(**inputs)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        if not isinstance(outputs, Mapping):
            outputs = {f"output_{index}": value for index, value in enumerate(outputs)}
        return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}

    def forward(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(self.named(inputs).values())


def _output_names(wrapper: _TensorsOnly, inputs: Mapping[str, torch.Tensor]) -> list[str]:
    try:
        return list(wrapper.named(inputs))
    except Exception as error:  # Whatever the user's model raises.
        raise InputError(
            f"The model cannot be saved as ONNX, since called with {', '.join(inputs)} alone, without labels, it "
            f"raises {type(error).__name__}: {_in_one_line(error)}; let it do without the labels, or set "
            "`save_onnx=False`."
        ) from error


def _traced(wrapper: _TensorsOnly, inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    from portico.ort.compiler.decompositions import decompositions

    shapes = {"inputs": _dynamic_shapes(inputs)}
    try:
        with warnings.catch_warnings():
            # Torch's export uses a name that torch deprecates.
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            program = torch.export.export(wrapper, (), {"inputs": dict(inputs)}, dynamic_shapes=shapes)
            return program.run_decompositions(decompositions())
    except Exception as error:  # Torch has an exception of its own for each kind of code that it cannot trace.
        raise InputError(
            f"The model cannot be saved as ONNX, since torch cannot trace it in one piece: {_in_one_line(error)} "
            "Change that line of the model, or set `save_onnx=False`."
        ) from error


def _dynamic_shapes(inputs: Mapping[str, torch.Tensor]) -> dict[str, dict[int, Any]]:
    return {name: dict.fromkeys(range(_num_dynamic(tensor)), Dim.AUTO) for name, tensor in inputs.items()}


def _num_dynamic(tensor: torch.Tensor) -> int:
    return 1 if tensor.dim() > _LARGEST_RANK_OF_SEQUENCES else min(tensor.dim(), 2)


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _drop_assertions(program: ExportedProgram) -> None:
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target in _ASSERTIONS:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _check(program: ExportedProgram) -> None:
    from portico.ort.compiler.lowerings import LOWERINGS

    operators = {node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    missing = sorted(str(operator) for operator in operators - set(LOWERINGS) - {torch.ops.aten.sym_size.int})
    if missing:
        raise InputError(
            f"The model cannot be saved as ONNX, since it uses {', '.join(missing)}, which portico cannot lower; set "
            "`save_onnx=False`, or export the model with another tool."
        )
