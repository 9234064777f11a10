"""Lowerings of ATen operators to ONNX, by kind; importing a module fills the table ``LOWERINGS``."""

from portico.ort.compiler.lowerings import (  # noqa: F401
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
from portico.ort.compiler.lowerings.registry import LOWERINGS as LOWERINGS
