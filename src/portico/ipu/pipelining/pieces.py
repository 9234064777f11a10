"""Modules whose weights are in pieces, each a weight of its own.

A piece is a view of the whole weight, which the module keeps: what is saved and loaded is the whole.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from portico.ipu.pipelining.lookup import rows_of_piece


class Piece(nn.Module):
    """Some rows of a weight; a state dict has them in the whole.

    Attributes:
        ipu_id: Where they lie.
    """

    ipu_id: int

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save nothing."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Load nothing."""


class EmbeddingPiece(Piece):
    """Some rows of a table.

    Args:
        weight: The rows, ``float [rows, features]``.
        first: Index of the first in the whole table.
        ipu_id: Where they lie.
        padding_idx: Row of the whole table that gets no gradient.
    """

    def __init__(self, weight: nn.Parameter, *, first: int, ipu_id: int, padding_idx: int | None) -> None:
        super().__init__()
        self.weight, self.first, self.ipu_id = weight, first, ipu_id
        self.padding_idx = padding_idx

    def forward(self, index: Tensor) -> Tensor:
        """Return rows ``float [..., features]`` for ``index``, ``int [...]``; zeros where it points elsewhere."""
        return rows_of_piece(index, self.weight, self.first, self.padding_idx)


class LinearPiece(Piece):
    """Some outputs of a projection, without their biases.

    Args:
        weight: Rows of its matrix, ``float [outputs, inputs]``.
        ipu_id: Where they lie.
    """

    def __init__(self, weight: nn.Parameter, *, ipu_id: int) -> None:
        super().__init__()
        self.weight, self.ipu_id = weight, ipu_id

    def forward(self, input: Tensor) -> Tensor:
        """Return ``float [..., outputs]`` for ``float [..., inputs]``."""
        return functional.linear(input, self.weight)


class Bias(Piece):
    """The biases of a projection, which are small, and often tied to another module's.

    Args:
        bias: The biases, ``float [outputs]``.
        ipu_id: Where they lie.
    """

    def __init__(self, bias: nn.Parameter, *, ipu_id: int) -> None:
        super().__init__()
        self.bias, self.ipu_id = bias, ipu_id

    def forward(self, outputs: Tensor) -> Tensor:
        """Return the outputs with their biases, ``float [..., outputs]``."""
        return outputs + self.bias


class InPieces(nn.Module):
    """A module whose weights are those of its pieces; a state dict has the whole ones.

    Attributes:
        pieces: The pieces.
        whole: The whole weights, by the names that they have in ``whole_class``.
        whole_class: What the module is without pieces.
    """

    pieces: nn.ModuleList
    whole: dict[str, nn.Parameter]
    whole_class: ClassVar[type[nn.Module]]

    # Read by models that look at its shape or its precision.
    weight: Any = property(lambda module: module.whole["weight"])

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        with_whole = {f"{prefix}{name}": value if keep_vars else value.detach() for name, value in self.whole.items()}
        destination.update(with_whole)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self._parameters.update(self.whole)
        try:
            super()._load_from_state_dict(state_dict, prefix, *args)
        finally:
            self._parameters.clear()


class SplitEmbedding(InPieces, nn.Embedding):
    """An embedding whose table is in pieces."""

    whole_class = nn.Embedding

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of ``input``, ``int [...]``, as ``float [..., features]``."""
        found: Tensor = sum(piece(input) for piece in self.pieces)
        return found


class SplitLinear(InPieces, nn.Linear):
    """A projection whose outputs are in pieces; the biases are a last one."""

    whole_class = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input``, ``float [..., in]``, as ``float [..., out]``."""
        rows: list[Any] = list(self.pieces)
        bias = rows.pop() if isinstance(rows[-1], Bias) else None
        outputs = torch.cat([piece(input) for piece in rows], dim=-1)
        biased: Tensor = outputs if bias is None else bias(outputs)
        return biased
