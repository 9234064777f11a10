"""Graphs that let go of their inputs while they run."""

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._guards import TracingContext

from portico.ort.compiler.decompositions import decompositions, describe_redrawn_masks
from portico.ort.compiler.partition import partitioned, run_in_torch
from portico.ort.compiler.translation import memory_order, translate
from portico.ort.report import GraphRecord, Report
from portico.ort.runtime import Program, SessionCache, device_of
from portico.ort.settings import SessionSettings


def taking_list(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return calls of ``module`` that take its inputs in one list, which they empty; ``module`` is changed.

    So an input is freed after its last use, if the list had the only reference to it: what a forward saved, while the
    backward proceeds. Torch's later versions generate such code too; the earliest that is supported does not.
    """
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    with graph.inserting_before(next(iter(graph.nodes))):
        inputs = graph.placeholder("inputs")
        taken = [graph.call_method("pop", (inputs, 0)) for _ in placeholders]
    for placeholder, value in zip(placeholders, taken, strict=True):
        placeholder.replace_all_uses_with(value)
        graph.erase_node(placeholder)
    module.recompile()

    def call(inputs: list[Any]) -> Any:
        return module(inputs)

    # The sign by which torch knows such functions.
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def fingerprint(module: fx.GraphModule, settings: SessionSettings) -> str:
    """Return a key for what ONNX Runtime makes of ``module``.

    It covers the graph with dtypes, shapes and constants, what translates it, the versions of what it is translated
    by, the machine, and the options that change how a graph is prepared.
    """
    digest = hashlib.sha256(_surroundings().encode())
    for part in (*sorted(settings.entries.items()), *_described(module)):
        digest.update(f"{part}\n".encode())
    for name, constant in sorted(_constants(module)):
        digest.update(name.encode())
        digest.update(constant.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@cache
def _surroundings() -> str:
    packages = [f"{name} {version(name)}" for name in ("torch", "onnx", "onnxruntime")]
    machine = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]
    return "\n".join([*packages, *machine, _digest_of_source()])


def _digest_of_source() -> str:
    """Tell apart versions of what translates graphs and of what has ONNX Runtime prepare them."""
    digest = hashlib.sha256()
    for folder in ("compiler", "runtime"):
        for path in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _described(module: fx.GraphModule) -> Iterator[str]:
    for node in module.graph.nodes:
        yield f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {_described_value(node.meta.get('val'))}"


def _described_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = [_described_value(size) for size in value.shape]
        return f"{value.dtype} {value.device} {sizes} {value.stride()} {memory_order(value)}"
    if isinstance(value, torch.SymInt):
        # What is known of a size decides which nodes are left out.
        return f"{value} {value.node.shape_env.bound_sympy(value.node.expr)}"
    if isinstance(value, tuple | list):
        return str([_described_value(part) for part in value])
    return str(value)


def _constants(module: fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    for node in module.graph.nodes:
        if node.op == "get_attr":
            yield str(node.target), getattr(module, str(node.target))


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
