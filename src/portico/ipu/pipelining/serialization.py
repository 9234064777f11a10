"""Large lookups and projections in pieces, so that no piece needs much memory at once.

The weights stay the model's own, whole and under their names: what is saved loads like any other model.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from portico.ipu.config import IPUConfig

_SPLITS = ("serialized_embedding_splits_per_ipu", "serialized_projection_splits_per_ipu")


class SerializedEmbedding(nn.Embedding):
    """An embedding whose table is looked up piece by piece.

    Attributes:
        num_pieces: Pieces of the table.
    """

    num_pieces: int

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of ``input``, ``int [...]``, as ``float [..., features]``."""
        pieces = torch.tensor_split(self.weight, min(self.num_pieces, self.num_embeddings))
        found: Any = 0
        first = 0
        for piece in pieces:
            inside = (input >= first) & (input < first + len(piece))
            rows = functional.embedding((input - first).clamp(0, len(piece) - 1), piece)
            found = found + torch.where(inside.unsqueeze(-1), rows, torch.zeros_like(rows))
            first += len(piece)
        # The row of the padding is looked up, and gets no gradient, as in a whole table.
        if self.padding_idx is not None:
            padding = (input == self.padding_idx).unsqueeze(-1)
            found = torch.where(padding, found.detach(), found)
        looked_up: Tensor = found
        return looked_up


class SerializedLinear(nn.Linear):
    """A projection whose outputs are computed piece by piece.

    Attributes:
        num_pieces: Pieces of the outputs.
    """

    num_pieces: int

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input``, ``float [..., in]``, as ``float [..., out]``."""
        weights = torch.tensor_split(self.weight, self.num_pieces)
        if self.bias is None:
            return torch.cat([functional.linear(input, weight) for weight in weights], dim=-1)
        biases = torch.tensor_split(self.bias, self.num_pieces)
        return torch.cat([functional.linear(input, *pair) for pair in zip(weights, biases, strict=True)], dim=-1)


def serialize(model: Any, config: IPUConfig) -> None:
    """Cut the input embedding and the output projection of a model as the configuration says.

    Args:
        model: A model with ``get_input_embeddings`` and ``get_output_embeddings``.
        config: In the mode (training or inference) that is meant.

    Raises:
        NotImplementedError: If the pieces are to lie on several IPUs.
    """
    for name in _SPLITS:
        if getattr(config, f"_{name}") is not None:
            raise NotImplementedError(
                f"`{name}` puts parts of one weight on several IPUs, which is not supported; set "
                f"`{name.split('_')[1]}_serialization_factor` to cut it into parts on one."
            )
    _cut(model, "get_input_embeddings", nn.Embedding, SerializedEmbedding, config._embedding_serialization_factor)
    _cut(model, "get_output_embeddings", nn.Linear, SerializedLinear, config._projection_serialization_factor)


def without_serialization(model: nn.Module) -> None:
    """Make all embeddings and projections whole again."""
    whole: dict[Any, Any] = {SerializedEmbedding: nn.Embedding, SerializedLinear: nn.Linear}
    for module in model.modules():
        if type(module) in whole:
            module.__class__ = whole[type(module)]
            del module.num_pieces


def _cut(model: Any, getter: str, kind: Any, serialized: Any, factor: int | None) -> None:
    module: Any = getattr(model, getter)() if hasattr(model, getter) else None
    if factor is not None and factor > 1 and type(module) is kind:
        module.__class__ = serialized
        module.num_pieces = factor
