"""A translated graph, ready to be called with torch tensors."""

from typing import Any

import torch

from portico.ort.compiler.translation import Translated
from portico.ort.runtime.binding import Binding
from portico.ort.runtime.session import make_session
from portico.ort.settings import SessionSettings


class Program:
    """Calls an ONNX Runtime session as the FX module that it came from was called.

    Args:
        translated: The model and its ends.
        settings: How ONNX Runtime runs it.
    """

    def __init__(self, translated: Translated, settings: SessionSettings) -> None:
        self._orders = translated.input_orders
        self._binding = Binding(make_session(translated.model, settings))

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
