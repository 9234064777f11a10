"""The ``torch.compile`` backend: it partitions each graph, and runs the parts in ONNX Runtime."""

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx

from portico.ort.compiler.decompositions import decompositions, describe_redrawn_masks
from portico.ort.compiler.partition import Called, list_missing_lowerings, partition_graph, run_in_torch
from portico.ort.compiler.translation import memory_order, translate
from portico.ort.report import GraphRecord, Report
from portico.ort.runtime import Program, SessionCache, device_of
from portico.ort.settings import SessionSettings
from portico.ort.torch_compat import (
    OutputCode,
    TracingContext,
    aot_module_simplified,
    box_inputs,
    cacheable,
    caching_autograd,
    functorch_config,
    register_backend,
    without_tracing,
)


@dataclass(frozen=True)
class Compilation:
    """What the graphs of a model have in common: the options of :func:`portico.ort.api.compile`, and its sessions."""

    settings: SessionSettings
    strict: bool
    report: Report
    sessions: SessionCache


# Of the graph that torch is reading from its cache, which holds nothing of the process.
_current: ContextVar[Compilation] = ContextVar("portico_ort_compilation")


def make_backend(settings: SessionSettings, *, strict: bool, report: Report) -> Callable[..., Any]:
    """Return a backend for ``torch.compile``, with the options of :func:`portico.ort.api.compile`.

    Raises:
        InputError: If ``strict`` refuses a graph; raised by the call that builds it.
    """
    compilation = Compilation(settings, strict, report, SessionCache(settings))

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        num_before = len(report.graphs)
        token = _current.set(compilation)
        try:
            with caching_autograd(compilation.sessions.folder, _surroundings(settings)):
                # As `torch._dynamo.backends.common.aot_autograd` does, which imports all of inductor for its logs.
                compiled = aot_module_simplified(
                    module,
                    example_inputs,
                    fw_compiler=cacheable(CompiledGraph, partial(_build, compilation, "forward")),
                    bw_compiler=cacheable(CompiledGraph, without_tracing(partial(_build_backward, compilation))),
                    inference_compiler=cacheable(CompiledGraph, partial(_build, compilation, "inference")),
                    partition_fn=_forward_and_backward,
                    decompositions=_Decompositions(),
                )
        finally:
            _current.reset(token)
        graphs = report.graphs[num_before:]
        if any(graph.is_traced for graph in graphs):
            # A forward may have been read from the cache before the session of its backward was found missing there.
            report.graphs[num_before:] = [graph for graph in graphs if graph.is_traced]
        return without_tracing(compiled)

    return backend


def _forward_and_backward(
    joint: fx.GraphModule, *args: object, **kwargs: object
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut the joint graph of forward and backward where the fewest bytes are saved in between."""
    # Recompute even what a matrix product of the backward reads, if the tensors saved anyway suffice for it.
    with functorch_config.patch(ban_recompute_materialized_backward=False):
        forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    describe_redrawn_masks(joint.graph, backward.graph)
    return forward, backward


@register_backend(name="portico_ort")
def portico_ort(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    settings: SessionSettings | None = None,
    strict: bool = False,
    report: Report | None = None,
) -> Any:
    """Run a graph of ``torch.compile(model, backend="portico_ort")``, with the options of :func:`make_backend`."""
    backend = make_backend(settings or SessionSettings(), strict=strict, report=report or Report())
    return backend(module, example_inputs)


class _Decompositions(Mapping[object, Callable[..., Any]]):
    """The decompositions, collected when the first is looked for: never, if the graph is in the cache."""

    _table = cached_property(lambda _: decompositions())

    def __getitem__(self, target: object) -> Callable[..., Any]:
        return self._table[target]

    def __iter__(self) -> Iterator[object]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _build_backward(compilation: Compilation, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    return without_tracing(_build(compilation, "backward", module, example_inputs))


def _build(
    compilation: Compilation, kind: str, module: fx.GraphModule, example_inputs: Sequence[Any]
) -> "CompiledGraph":
    start = time.perf_counter()
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        # Allow several backward passes: torch may donate saved tensors, but ONNX Runtime never overwrites them.
        context.fw_metadata.bw_donated_idxs = []
    whole = partition_graph(module, is_in_stages=kind == "backward")
    children = whole.named_children()
    parts = {name: part for name, part in children if name.startswith("fused_") and isinstance(part, fx.GraphModule)}
    keys = {name: fingerprint(part, compilation.settings) for name, part in parts.items()}
    builds = {name: partial(translate, part) for name, part in parts.items()}
    graph = CompiledGraph(kind, whole, keys, device_of(example_inputs))
    graph.load(compilation, whole, builds, start)
    return graph


class CompiledGraph(OutputCode):
    """A graph whose parts run in ONNX Runtime, as a function of the list of its inputs, which it empties.

    AOTAutograd caches it on disk, without the sessions, and calls :meth:`post_compile` where it reads it again.

    Args:
        kind: ``"forward"``, ``"backward"`` or ``"inference"``.
        module: The graph, partitioned; :meth:`load` changes it.
        keys: Of the sessions, by the names of their submodules.
        device: Where the tensors are.
    """

    def __init__(self, kind: str, module: fx.GraphModule, keys: dict[str, str], device: torch.device) -> None:
        super().__init__()
        # AOTAutograd passes its inputs as a list to objects with this attribute, which wrappers copy.
        self._boxed_call = True
        self._kind = kind
        self._keys = keys
        self._device = device
        self._unknown = list_missing_lowerings(module)
        module.meta = {}
        # A graph is read by tracing its code; AOTAutograd's tracer, which evaluations keep, would enter the parts.
        module._tracer_cls = None
        self._unloaded = module.__reduce__()
        self._call: Callable[..., Any] | None = None

    def __call__(self, inputs: Sequence[Any]) -> Any:
        assert self._call is not None
        return self._call(inputs)

    def load(
        self,
        compilation: Compilation,
        module: fx.GraphModule,
        builds: Mapping[str, Callable[[], Any]] | None,
        start: float,
    ) -> None:
        """Prepare the sessions of ``module``, building those that are not in the cache, or none without ``builds``.

        Raises:
            LookupError: If a session is missing; AOTAutograd then traces the model again.
            InputError: If an operator is refused, or ONNX Runtime cannot run a part.
        """
        record = GraphRecord(self._kind, is_traced=builds is not None)
        for name, key in self._keys.items():
            session, is_new = compilation.sessions.session(key, builds[name] if builds else _fail_lookup, self._device)
            program = Program(session, self._device)
            setattr(module, name, Called(program))
            record.num_onnx_nodes += program.num_nodes
            record.num_sessions += 1
            record.num_built += is_new
            if compilation.settings.profile:
                compilation.report.profiled.append(session)
        run_in_torch(module, self._unknown, strict=compilation.strict, report=compilation.report)
        self._call = box_inputs(module)
        record.build_seconds = time.perf_counter() - start
        compilation.report.graphs.append(record)

    def post_compile(self, *_: object) -> None:
        """Load the sessions after the graph was read from the cache."""
        start = time.perf_counter()
        function, args = self._unloaded
        self.load(_current.get(), function(*args), None, start)

    def prepare_for_serialization(self) -> None:
        self._call = None

    def set_triton_bundle(self, triton_bundle: object) -> None:
        """Do nothing: ONNX Runtime has no Triton kernels."""


def _fail_lookup() -> NoReturn:
    raise LookupError("a session is missing in the cache")


# ---- Keys of the cache ----


def fingerprint(module: fx.GraphModule, settings: SessionSettings) -> str:
    """Return a cache key for the session of ``module``.

    It covers the graph with dtypes, shapes and constants, our source, the versions of the packages, the machine, and
    the settings that change the optimised model.
    """
    digest = hashlib.sha256(_surroundings(settings).encode())
    nodes = (
        f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {_describe(node.meta.get('val'))}"
        for node in module.graph.nodes
    )
    for node in nodes:
        digest.update(f"{node}\n".encode())
    for name in sorted(str(node.target) for node in module.graph.find_nodes(op="get_attr")):
        constant = getattr(module, name)
        digest.update(name.encode())
        digest.update(constant.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _surroundings(settings: SessionSettings) -> str:
    return "\n".join([_describe_installation(), *(str(entry) for entry in sorted(settings.entries.items()))])


@cache
def _describe_installation() -> str:
    packages = [f"{name} {version(name)}" for name in ("torch", "onnx", "onnxruntime")]
    machine = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]
    # Sessions depend on the code that translates graphs and on the code that prepares sessions.
    source = hashlib.sha256((Path(__file__).parents[1] / "runtime.py").read_bytes())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source.update(path.read_bytes())
    return "\n".join([*packages, *machine, source.hexdigest()])


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        sizes = [_describe(size) for size in value.shape]
        return f"{value.dtype} {value.device} {sizes} {value.stride()} {memory_order(value)}"
    if isinstance(value, torch.SymInt):
        # The known range of a size decides which nodes are left out.
        return f"{value} {value.node.shape_env.bound_sympy(value.node.expr)}"
    if isinstance(value, tuple | list):
        return str([_describe(part) for part in value])
    return str(value)
