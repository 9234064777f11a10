"""The ``torch.compile`` backend: forward and backward graphs, each in ONNX Runtime."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from portico.ort.compiler.decompositions import decompositions
from portico.ort.compiler.partition import partitioned
from portico.ort.compiler.translation import translate
from portico.ort.runtime.program import Program
from portico.ort.runtime.session import SessionSettings


def make_backend(settings: SessionSettings | None = None, *, strict: bool = False) -> Callable[..., Any]:
    """Return a backend for ``torch.compile``.

    Args:
        settings: How ONNX Runtime runs the graphs.
        strict: Refuse a graph of which a part would run in torch.
    """
    chosen = settings or SessionSettings()

    def compile_graph(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return make_boxed_func(_in_onnxruntime(module, chosen).forward)

    return aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
    )


def _in_onnxruntime(module: fx.GraphModule, settings: SessionSettings) -> fx.GraphModule:
    whole = partitioned(module)
    for name, part in list(whole.named_children()):
        if name.startswith("fused_"):
            setattr(whole, name, _Called(Program(translate(part), settings)))
    whole.recompile()
    return whole


class _Called(torch.nn.Module):
    """A program in the place of the submodule that it runs."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.forward = program.__call__
