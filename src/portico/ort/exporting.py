"""A model as one graph that computes its outputs from its inputs, to be written to a file."""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from portico.errors import InputError
from portico.ort.settings import require

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


# Torch's own exporter needs onnxscript, which an installation with `portico[ort]` may lack; the compiler's table of
# lowerings makes the same file without it.

# What a protobuf message can hold; weights beyond it go into a file of their own.
_LARGEST_MESSAGE = 2**31 - 1


def save_onnx(model: nn.Module, inputs: Mapping[str, torch.Tensor], path: str | Path) -> Path:
    """Write ``model`` as an ONNX file that needs nothing but a runtime.

    Rows and length are dynamic. Outputs have the names that the model gives them, or ``output_0`` and so on.

    Args:
        model: A model that takes its inputs by name.
        inputs: Example inputs by name, at least 2 rows.
        path: File to write; weights above 2 GB lie beside it, in a file that ends in ``.data``.

    Returns:
        The path.

    Raises:
        InputError: As :func:`~portico.ort.exporting.exported`.
    """
    from portico.ort.compiler.translation import translate

    program, output_names = exported(model, inputs)
    proto = translate(program.graph_module, weights=_weights(program), output_names=output_names)
    # About calls from torch; users of the file have nothing to do with it.
    del proto.metadata_props[:]
    _name_output_dimensions(proto, program, _name_inputs(proto, list(inputs)))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(proto, path)
    return path


def _write(proto: onnx.ModelProto, path: Path) -> None:
    too_large = sum(len(weight.raw_data) for weight in proto.graph.initializer) > _LARGEST_MESSAGE
    location = f"{path.name}.data" if too_large else None
    # A file of weights that is there already would be written on at its end.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
        onnx.save_model(proto, Path(folder) / path.name, save_as_external_data=too_large, location=location)
        for name in (location, path.name):
            if name is not None:
                (Path(folder) / name).replace(path.with_name(name))


def example_inputs(model: Any, batch: Mapping[str, Any], label_names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the inputs that a saved model takes, made of a batch of training: without labels.

    Args:
        model: The model.
        batch: A batch; its tensors have at least one row.
        label_names: Names of the labels in it. A decoder that would make its input of them gets that input instead.
    """
    inputs = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    labels = inputs.get("labels")
    if labels is not None and "decoder_input_ids" not in inputs and _makes_decoder_inputs(model):
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
    # A size of 1 would be taken for a constant.
    return {name: torch.cat([value, value]) for name, value in inputs.items() if name not in label_names}


def _makes_decoder_inputs(model: Any) -> bool:
    is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return is_encoder_decoder and hasattr(model, "prepare_decoder_input_ids_from_labels")


def _weights(program: ExportedProgram) -> dict[str, tuple[str, torch.Tensor]]:
    stored = {**program.state_dict, **program.constants}
    return {
        spec.arg.name: (str(spec.target).removeprefix("model."), stored[str(spec.target)])
        for spec in program.graph_signature.input_specs
        if spec.kind is not InputKind.USER_INPUT and spec.target in stored
    }


def _name_inputs(proto: onnx.ModelProto, names: list[str]) -> dict[str, str]:
    """Call inputs and their dynamic dimensions by names that a user knows; return those of the dimensions."""
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
    """Tell the sizes of outputs: numbers, or the names of dimensions of the inputs."""
    nodes: Any = program.graph.output_node().args[0]
    for value, node in zip(proto.graph.output, nodes, strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, node.meta["val"].shape, strict=True):
            if isinstance(size, int):
                dim.dim_value = size
            elif str(size) in dim_names:
                dim.dim_param = dim_names[str(size)]
