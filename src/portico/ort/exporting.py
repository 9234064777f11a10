"""Export of a trained model to an ONNX file.

Torch's own exporter needs onnxscript, which `portico[ort]` does not install; the compiler's lowerings do without.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from portico.errors import InputError
from portico.ort.settings import require
from portico.trust.disk import staged_folder

# Checks that an export adds for its inputs.
_ASSERTIONS = {
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
}
# [batch, tokens, features]
_LARGEST_RANK_OF_SEQUENCES = 3
# The limit of a protobuf message, in bytes; larger weights go into a separate file.
_LARGEST_MESSAGE = 2**31 - 1


def export_program(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[ExportedProgram, list[str]]:
    """Trace ``model`` in evaluation mode, as :func:`save_onnx` does; return the program and its outputs' names.

    Raises:
        InputError: If the model cannot be called with ``inputs``, cannot be traced, or uses an operator that has no
            lowering; or if ONNX Runtime is not installed.
    """
    require()
    from portico.ort.compiler.lowerings import LOWERINGS

    wrapper = _TensorsOnly(model)
    was_training = model.training
    try:
        wrapper.eval()
        with torch.no_grad():
            output_names = _output_names(wrapper, inputs)
            program = _trace(wrapper, inputs)
    finally:
        model.train(was_training)
    graph = program.graph_module.graph
    output = graph.output_node()
    # torch.export also returns the buffers and inputs that the model changes; a file has no memory for them.
    specs = program.graph_signature.output_specs
    returned = zip(output.args[0], specs, strict=True)
    output.args = (tuple(value for value, spec in returned if spec.kind is OutputKind.USER_OUTPUT),)
    for node in list(graph.nodes):
        if node.target in _ASSERTIONS:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    operators = {node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    missing = sorted(str(operator) for operator in operators - set(LOWERINGS) - {torch.ops.aten.sym_size.int})
    if missing:
        raise InputError(
            f"The model cannot be saved as ONNX: it uses {', '.join(missing)}, which portico cannot lower; set "
            "`save_onnx=False`, or export the model with another tool."
        )
    return program, output_names


class _TensorsOnly(nn.Module):
    """Calls a model and returns the tensors among its outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def name_outputs(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        # Bypasses a compiled call.
        outputs = self.model._call_impl(**inputs)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        if not isinstance(outputs, Mapping):
            outputs = {f"output_{index}": value for index, value in enumerate(outputs)}
        return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}

    def forward(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(self.name_outputs(inputs).values())


def _output_names(wrapper: _TensorsOnly, inputs: Mapping[str, torch.Tensor]) -> list[str]:
    try:
        return list(wrapper.name_outputs(inputs))
    except Exception as error:  # Whatever the user's model raises.
        raise InputError(
            f"The model cannot be saved as ONNX: called with {', '.join(inputs)} only, without labels, it raises "
            f"{type(error).__name__}: {' '.join(str(error).split())}; make the labels optional, or set "
            "`save_onnx=False`."
        ) from error


def _trace(wrapper: _TensorsOnly, inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    from portico.ort.compiler.decompositions import decompositions

    dynamic = {}
    for name, tensor in inputs.items():
        num_dynamic = 1 if tensor.dim() > _LARGEST_RANK_OF_SEQUENCES else min(tensor.dim(), 2)
        dynamic[name] = dict.fromkeys(range(num_dynamic), Dim.AUTO)
    try:
        with warnings.catch_warnings():
            # torch.export uses a name that torch itself deprecates.
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            program = torch.export.export(wrapper, (), {"inputs": dict(inputs)}, dynamic_shapes={"inputs": dynamic})
            return program.run_decompositions(decompositions())
    except Exception as error:  # Torch raises a different exception for each kind of code that it cannot trace.
        raise InputError(
            f"The model cannot be saved as ONNX: torch cannot trace it in one piece: {' '.join(str(error).split())} "
            "Change that line of the model, or set `save_onnx=False`."
        ) from error


def save_onnx(
    model: nn.Module, inputs: Mapping[str, torch.Tensor], path: str | Path, *, is_standard: bool = False
) -> Path:
    """Write ``model`` as an ONNX file, and return its path.

    The first two dimensions of each input are dynamic, or only the first of inputs with four or more, such as images.
    Outputs keep the names that the model returns them by, or are called ``output_0`` and so on.

    Args:
        model: A model that takes its inputs by name.
        inputs: Example inputs by name, at least 2 rows.
        path: File to write; weights above 2 GB go into a second file next to it, which ends in ``.data``.
        is_standard: Whether to use ONNX's own operators only, and none of ONNX Runtime's (domain ``com.microsoft``).

    Raises:
        InputError: As :func:`~portico.ort.exporting.export_program`.
    """
    from portico.ort.compiler.translation import translate

    program, output_names = export_program(model, inputs)
    stored = {**program.state_dict, **program.constants}
    weights = {
        spec.arg.name: (str(spec.target).removeprefix("model."), stored[str(spec.target)])
        for spec in program.graph_signature.input_specs
        if spec.kind is not InputKind.USER_INPUT and spec.target in stored
    }
    proto = translate(program.graph_module, weights=weights, output_names=output_names, is_standard=is_standard)
    # The metadata is for calls from torch only.
    del proto.metadata_props[:]
    _name_output_dimensions(proto, program, _name_inputs(proto, list(inputs)))
    path = Path(path)
    too_large = sum(len(weight.raw_data) for weight in proto.graph.initializer) > _LARGEST_MESSAGE
    location = f"{path.name}.data" if too_large else None
    # ONNX would append to an existing file of weights.
    with staged_folder(path.parent) as staging:
        onnx.save_model(proto, staging / path.name, save_as_external_data=too_large, location=location)
    return path


def example_inputs(model: nn.Module, batch: Mapping[str, Any], label_names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the inputs of a saved model from a training batch: its tensors without the labels.

    A model that would make ``decoder_input_ids`` from the labels gets them as an input instead.
    """
    inputs = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    shift_right = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if is_encoder_decoder and shift_right is not None and "labels" in inputs and "decoder_input_ids" not in inputs:
        inputs["decoder_input_ids"] = shift_right(labels=inputs["labels"])
    # torch.export treats a size of 1 as a constant.
    return {name: torch.cat([value, value]) for name, value in inputs.items() if name not in label_names}


def _name_inputs(proto: onnx.ModelProto, names: list[str]) -> dict[str, str]:
    """Rename the inputs and their dynamic dimensions; return the new names of the dimensions by their symbols."""
    new_names = {value.name: name for value, name in zip(proto.graph.input, names, strict=True)}
    dim_names: dict[str, str] = {}
    for value in proto.graph.input:
        value.name = new_names[value.name]
        prefix = "decoder_" if value.name.startswith("decoder_") else ""
        axis_names = ("batch_size", f"{prefix}sequence_length")
        for dim, axis_name in zip(value.type.tensor_type.shape.dim, axis_names, strict=False):
            if dim.dim_param:
                dim.dim_param = dim_names.setdefault(dim.dim_param, axis_name)
    for node in proto.graph.node:
        node.input[:] = [new_names.get(name, name) for name in node.input]
    return dim_names


def _name_output_dimensions(proto: onnx.ModelProto, program: ExportedProgram, dim_names: Mapping[str, str]) -> None:
    """Set the sizes of the outputs: numbers, or names of dimensions of the inputs."""
    nodes: Any = program.graph.output_node().args[0]
    for value, node in zip(proto.graph.output, nodes, strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, node.meta["val"].shape, strict=True):
            if isinstance(size, int):
                dim.dim_value = size
            elif str(size) in dim_names:
                dim.dim_param = dim_names[str(size)]
