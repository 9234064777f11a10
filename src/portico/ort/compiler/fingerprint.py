"""What tells one graph from another, the same in every process."""

import hashlib
import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import fx

from portico.ort.compiler.translation import memory_order
from portico.ort.settings import SessionSettings


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
