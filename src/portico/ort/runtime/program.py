"""A session, ready to be called with torch tensors."""

from typing import Any

import torch

from portico.ort.compiler.translation import Ends
from portico.ort.runtime.binding import Binding
from portico.ort.runtime.providers import CPU


class Program:
    """Calls an ONNX Runtime session as the FX module that it came from was called.

    Args:
        session: An ``onnxruntime.InferenceSession`` of a translated model.
        device: Where the tensors are.

    Attributes:
        num_nodes: Nodes of the model before ONNX Runtime fused them.
    """

    def __init__(self, session: Any, device: torch.device = CPU) -> None:
        ends = Ends.of(session.get_modelmeta().custom_metadata_map)
        self.num_nodes = ends.num_nodes
        self._orders = ends.input_orders
        self._binding = Binding(session, device)

    def __call__(self, *args: Any) -> Any:
        """Run on tensors and sizes, in the order of the graph's inputs."""
        inputs = [_laid_out(value, order) for value, order in zip(args, self._orders, strict=True)]
        outputs = self._binding(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _laid_out(value: Any, order: tuple[int, ...] | None) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=torch.int64)
    if order is not None:
        value = value.permute(order)
    return value.contiguous()
