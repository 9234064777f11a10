"""The ``torch.compile`` backend: forward and backward graphs, each in ONNX Runtime."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._guards import TracingContext

from portico.ort.compiler.boxing import taking_list
from portico.ort.compiler.decompositions import decompositions
from portico.ort.compiler.fallbacks import run_in_torch
from portico.ort.compiler.fingerprint import fingerprint
from portico.ort.compiler.partition import partitioned
from portico.ort.compiler.randomness import describe_redrawn_masks
from portico.ort.compiler.translation import translate
from portico.ort.report import GraphRecord, Report
from portico.ort.runtime.cache import SessionCache
from portico.ort.runtime.program import Program
from portico.ort.runtime.providers import device_of
from portico.ort.settings import SessionSettings


def make_backend(
    settings: SessionSettings | None = None, *, strict: bool = False, report: Report | None = None
) -> Callable[..., Any]:
    """Return a backend for ``torch.compile``.

    Args:
        settings: How ONNX Runtime runs the graphs.
        strict: Refuse a graph of which a part would run in torch.
        report: Where to take note of what was built.

    Raises:
        InputError: From the call that builds the graph, if ``strict`` refuses it.
    """
    builder = _Builder(settings or SessionSettings(), strict, report if report is not None else Report())
    return aot_autograd(
        fw_compiler=partial(builder.build, "forward"),
        bw_compiler=partial(builder.build, "backward"),
        inference_compiler=partial(builder.build, "inference"),
        partition_fn=_forward_and_backward,
        decompositions=decompositions(),
    )


def _forward_and_backward(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut the graph of a forward and its backward in two, where the least has to be kept between them."""
    # Even what a product in the backward reads is made again, if it can be made of what is kept for other reasons.
    with functorch_config.patch(ban_recompute_materialized_backward=False):
        forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    describe_redrawn_masks(joint.graph, backward.graph)
    return forward, backward


@register_backend(name="portico_ort")
def portico_ort(module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
    """Run a graph of ``torch.compile(model, backend="portico_ort")`` in ONNX Runtime.

    Args:
        module: The graph.
        example_inputs: Inputs of it.
        options: Those of :func:`make_backend`.
    """
    return make_backend(**options)(module, example_inputs)


class _Builder:
    def __init__(self, settings: SessionSettings, strict: bool, report: Report) -> None:
        self._settings = settings
        self._strict = strict
        self._report = report
        self._cache = SessionCache(settings)

    def build(self, kind: str, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        start = time.perf_counter()
        _keep_saved_tensors()
        whole = partitioned(module, is_in_stages=kind == "backward")
        record = GraphRecord(kind)
        device = device_of(example_inputs)
        for name, part in list(whole.named_children()):
            if name.startswith("fused_"):
                assert isinstance(part, fx.GraphModule)
                key = fingerprint(part, self._settings)
                session, is_built = self._cache.session(key, partial(translate, part), device)
                program = Program(session, device)
                setattr(whole, name, _Called(program))
                record.note_session(program.num_nodes, is_built)
                if self._settings.profile:
                    self._report.profiled.append(session)
        run_in_torch(whole, strict=self._strict, report=self._report)
        call = taking_list(whole)
        record.build_seconds = time.perf_counter() - start
        self._report.graphs.append(record)
        return call


def _keep_saved_tensors() -> None:
    """Let a graph have several backward passes: ONNX Runtime writes over nothing that the forward saved for them."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


class _Called(torch.nn.Module):
    """A program in the place of the submodule that it runs."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.forward = program.__call__
