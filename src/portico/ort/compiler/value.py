from dataclasses import dataclass

import torch

Dim = int | torch.SymInt


@dataclass(frozen=True)
class Value:
    """One tensor of an ONNX graph.

    Args:
        name: Its name in the graph.
        dtype: Torch dtype; ``None`` for a step inside a lowering, where nobody asks.
        shape: Dimensions, symbolic ones as ``SymInt``; ``None`` as for ``dtype``.
    """

    name: str
    dtype: torch.dtype | None = None
    shape: tuple[Dim, ...] | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        assert self.shape is not None, f"{self.name} is a step inside a lowering: its shape is not known"
        return len(self.shape)
