"""The ``torch.compile`` backend: it partitions each graph, and runs the parts in ONNX Runtime."""

import hashlib
import platform
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx

from portico.ort.compiler.decompositions import decompositions, describe_redrawn_masks
from portico.ort.compiler.partition import Called, partitioned, run_in_torch
from portico.ort.compiler.translation import memory_order, translate
from portico.ort.report import GraphRecord, Report
from portico.ort.runtime import Program, SessionCache, device_of
from portico.ort.settings import SessionSettings
from portico.ort.torch_compat import TracingContext, aot_autograd, functorch_config, register_backend


def make_backend(
    settings: SessionSettings | None = None, *, strict: bool = False, report: Report | None = None
) -> Callable[..., Any]:
    """Return a backend for ``torch.compile``, with the options of :func:`portico.ort.api.compile`.

    Raises:
        InputError: If ``strict`` refuses a graph; raised by the call that builds it.
    """
    settings, report = settings or SessionSettings(), report if report is not None else Report()
    built = partial(_built, settings=settings, strict=strict, report=report, sessions=SessionCache(settings))
    return aot_autograd(
        fw_compiler=partial(built, "forward"),
        bw_compiler=partial(built, "backward"),
        inference_compiler=partial(built, "inference"),
        partition_fn=_forward_and_backward,
        decompositions=decompositions(),
    )


def _forward_and_backward(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut the joint graph of forward and backward where the fewest bytes are saved in between."""
    # Recompute even what a matrix product of the backward reads, if the tensors saved anyway suffice for it.
    with functorch_config.patch(ban_recompute_materialized_backward=False):
        forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    describe_redrawn_masks(joint.graph, backward.graph)
    return forward, backward


@register_backend(name="portico_ort")
def portico_ort(module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
    """Run a graph of ``torch.compile(model, backend="portico_ort")``, with the options of :func:`make_backend`."""
    return make_backend(**options)(module, example_inputs)


def _built(
    kind: str,
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    settings: SessionSettings,
    strict: bool,
    report: Report,
    sessions: SessionCache,
) -> Callable[..., Any]:
    start = time.perf_counter()
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        # Allow several backward passes: torch may donate saved tensors, but ONNX Runtime never overwrites them.
        context.fw_metadata.bw_donated_idxs = []
    whole = partitioned(module, is_in_stages=kind == "backward")
    record = GraphRecord(kind)
    device = device_of(example_inputs)
    for name, part in list(whole.named_children()):
        if name.startswith("fused_"):
            assert isinstance(part, fx.GraphModule)
            session, is_new = sessions.session(fingerprint(part, settings), partial(translate, part), device)
            program = Program(session, device)
            setattr(whole, name, Called(program))
            record.num_onnx_nodes += program.num_nodes
            record.num_sessions += 1
            record.num_built += is_new
            if settings.profile:
                report.profiled.append(session)
    run_in_torch(whole, strict=strict, report=report)
    call = taking_list(whole)
    record.build_seconds = time.perf_counter() - start
    report.graphs.append(record)
    return call


# ---- Freeing inputs ----


def taking_list(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return a function that calls ``module`` with a list of inputs, which it empties; ``module`` is changed.

    Each input is then freed after its last use, so that saved tensors go while the backward runs. Later versions of
    torch generate such code themselves; the oldest that is supported does not.
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

    # AOTAutograd passes its inputs as a list to functions with this attribute.
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


# ---- Keys of the cache ----


def fingerprint(module: fx.GraphModule, settings: SessionSettings) -> str:
    """Return a cache key for the session of ``module``.

    It covers the graph with dtypes, shapes and constants, our source, the versions of the packages, the machine, and
    the settings that change the optimised model.
    """
    digest = hashlib.sha256(_surroundings().encode())
    nodes = (
        f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {_described(node.meta.get('val'))}"
        for node in module.graph.nodes
    )
    for part in (*sorted(settings.entries.items()), *nodes):
        digest.update(f"{part}\n".encode())
    for name in sorted(str(node.target) for node in module.graph.find_nodes(op="get_attr")):
        constant = getattr(module, name)
        digest.update(name.encode())
        digest.update(constant.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@cache
def _surroundings() -> str:
    packages = [f"{name} {version(name)}" for name in ("torch", "onnx", "onnxruntime")]
    machine = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]
    # Sessions depend on the code that translates graphs and on the code that prepares sessions.
    source = hashlib.sha256((Path(__file__).parents[1] / "runtime.py").read_bytes())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source.update(path.read_bytes())
    return "\n".join([*packages, *machine, source.hexdigest()])


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = [_described(size) for size in value.shape]
        return f"{value.dtype} {value.device} {sizes} {value.stride()} {memory_order(value)}"
    if isinstance(value, torch.SymInt):
        # The known range of a size decides which nodes are left out.
        return f"{value} {value.node.shape_env.bound_sympy(value.node.expr)}"
    if isinstance(value, tuple | list):
        return str([_described(part) for part in value])
    return str(value)
