"""What each ATen operator is in ONNX, by kind; importing a module here fills the table."""

from portico.ort.compiler.lowerings import (
    activations,
    attention,
    batch_norm,
    convolution,
    copies,
    creation,
    division,
    elementwise,
    indexing,
    matrices,
    normalization,
    pooling,
    reductions,
    shapes,
)
from portico.ort.compiler.lowerings.registry import LOWERINGS, Context

__all__ = [
    "LOWERINGS",
    "Context",
    "activations",
    "attention",
    "batch_norm",
    "convolution",
    "copies",
    "creation",
    "division",
    "elementwise",
    "indexing",
    "matrices",
    "normalization",
    "pooling",
    "reductions",
    "shapes",
]
