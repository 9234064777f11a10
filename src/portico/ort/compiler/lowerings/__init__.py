"""What each ATen operator is in ONNX, by kind; importing a module here fills the table."""

from portico.ort.compiler.lowerings import (
    activations,
    arithmetic,
    attention,
    batch_norm,
    convolution,
    copies,
    creation,
    division,
    indexing,
    logic,
    matrices,
    normalization,
    pooling,
    reductions,
    shapes,
    unary,
)
from portico.ort.compiler.lowerings.registry import LOWERINGS, Context

__all__ = [
    "LOWERINGS",
    "Context",
    "activations",
    "arithmetic",
    "attention",
    "batch_norm",
    "convolution",
    "copies",
    "creation",
    "division",
    "indexing",
    "logic",
    "matrices",
    "normalization",
    "pooling",
    "reductions",
    "shapes",
    "unary",
]
