"""Each ATen operator in ONNX, by kind; importing a module here fills the table."""

from portico.ort.compiler.lowerings import (
    activations,
    arithmetic,
    attention,
    convolution,
    creation,
    indexing,
    logic,
    normalization,
    reductions,
    shapes,
)
from portico.ort.compiler.lowerings.registry import LOWERINGS, Context

__all__ = [
    "LOWERINGS",
    "Context",
    "activations",
    "arithmetic",
    "attention",
    "convolution",
    "creation",
    "indexing",
    "logic",
    "normalization",
    "reductions",
    "shapes",
]
