"""Lowerings of ATen operators to ONNX, by kind; importing a module fills the table ``LOWERINGS``."""

from portico.ort.compiler.lowerings import creation, elementwise, indexing, products, reductions  # noqa: F401
from portico.ort.compiler.lowerings.registry import LOWERINGS as LOWERINGS
