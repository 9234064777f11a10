"""A trained model as an ONNX file."""

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
from portico.ort.packages import require

# Torch's own exporter needs onnxscript, which an installation with `portico[ort]` may lack; the compiler's table of
# lowerings makes the same file without it.

# What a protobuf message can hold; weights beyond it go into a file of their own.
_LARGEST_MESSAGE = 2**31 - 1
# What an export checks about its inputs; they compute nothing.
_ASSERTIONS = {
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
}


def save_onnx(model: nn.Module, inputs: Mapping[str, torch.Tensor], path: str | Path) -> Path:
    """Write ``model`` as an ONNX file that needs nothing but a runtime.

    The first two dimensions of every input are dynamic. Outputs have the names that the model gives them.

    Args:
        model: A model that takes its inputs by name, and returns a dict or a ``ModelOutput``.
        inputs: Example inputs by name, at least 2 rows.
        path: File to write; weights above 2 GB lie beside it, in a file that ends in ``.data``.

    Returns:
        The path.

    Raises:
        InputError: If the model uses an operator that has no lowering, or ONNX Runtime is not installed.
    """
    require()
    from portico.ort.compiler.translation import translate

    wrapper = _TensorsOnly(model)
    was_training = model.training
    try:
        wrapper.eval()
        with torch.no_grad():
            output_names = list(wrapper.named(inputs))
            exported = _exported(wrapper, inputs)
    finally:
        model.train(was_training)
    _drop_assertions(exported)
    _check(exported)
    proto = translate(exported.graph_module, weights=_weights(exported), output_names=output_names)
    # About calls from torch; users of the file have nothing to do with it.
    del proto.metadata_props[:]
    _name_inputs(proto, list(inputs))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    too_large = sum(len(weight.raw_data) for weight in proto.graph.initializer) > _LARGEST_MESSAGE
    onnx.save_model(proto, path, save_as_external_data=too_large, location=f"{path.name}.data" if too_large else None)
    return path


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


class _TensorsOnly(nn.Module):
    """Calls a model and returns the tensors among its outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def named(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        # Past the place where calls go to a compiler.
        outputs = self.model._call_impl(**inputs)
        return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}

    def forward(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(self.named(inputs).values())


def _exported(wrapper: _TensorsOnly, inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    from portico.ort.compiler.decompositions import decompositions

    shapes = {"inputs": _dynamic_shapes(inputs)}
    with warnings.catch_warnings():
        # Torch's export uses a name that torch deprecates.
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        exported = torch.export.export(wrapper, (), {"inputs": dict(inputs)}, dynamic_shapes=shapes)
        return exported.run_decompositions(decompositions())


def _dynamic_shapes(inputs: Mapping[str, torch.Tensor]) -> dict[str, dict[int, Any]]:
    return {name: dict.fromkeys(range(min(tensor.dim(), 2)), Dim.AUTO) for name, tensor in inputs.items()}


def _weights(exported: ExportedProgram) -> dict[str, tuple[str, torch.Tensor]]:
    stored = {**exported.state_dict, **exported.constants}
    return {
        spec.arg.name: (str(spec.target).removeprefix("model."), stored[str(spec.target)])
        for spec in exported.graph_signature.input_specs
        if spec.kind is not InputKind.USER_INPUT and spec.target in stored
    }


def _drop_assertions(exported: ExportedProgram) -> None:
    graph = exported.graph_module.graph
    for node in list(graph.nodes):
        if node.target in _ASSERTIONS:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _check(exported: ExportedProgram) -> None:
    from portico.ort.compiler.lowerings import LOWERINGS

    operators = {node.target for node in exported.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    missing = sorted(str(operator) for operator in operators - set(LOWERINGS) - {torch.ops.aten.sym_size.int})
    if missing:
        raise InputError(
            f"The model cannot be saved as ONNX, since it uses {', '.join(missing)}, which portico cannot lower; set "
            "`save_onnx=False`, or export the model with another tool."
        )


def _name_inputs(proto: onnx.ModelProto, names: list[str]) -> None:
    """Call inputs and their dynamic dimensions by names that a user knows."""
    new_names = {value.name: name for value, name in zip(proto.graph.input, names, strict=True)}
    for value in proto.graph.input:
        value.name = new_names[value.name]
        prefix = "decoder_" if value.name.startswith("decoder_") else ""
        axis_names = ("batch_size", f"{prefix}sequence_length")
        for dim, axis_name in zip(value.type.tensor_type.shape.dim, axis_names, strict=False):
            if dim.dim_param:
                dim.dim_param = axis_name
    for node in proto.graph.node:
        node.input[:] = [new_names.get(name, name) for name in node.input]
