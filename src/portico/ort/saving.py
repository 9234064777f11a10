"""A trained model as an ONNX file."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from portico.ort.exporting import exported

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
