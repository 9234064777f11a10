"""Large lookups and projections in pieces, so that no piece needs much memory at once.

The weights stay the model's own, whole and under their names: what is saved loads like any other model.
"""

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from portico.ipu.config import IPUConfig
from portico.ipu.config.errors import IncompatibleIPUConfigError
from portico.ipu.pipelining.lookup import rows_of_piece
from portico.ipu.pipelining.pieces import InPieces
from portico.ipu.pipelining.splitting import split, without_splits


class SerializedEmbedding(nn.Embedding):
    """An embedding whose table is looked up piece by piece.

    Attributes:
        num_pieces: Pieces of the table.
    """

    num_pieces: int

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of ``input``, ``int [...]``, as ``float [..., features]``."""
        pieces = torch.tensor_split(self.weight, min(self.num_pieces, self.num_embeddings))
        firsts = accumulate(map(len, pieces), initial=0)
        found: Any = sum(
            rows_of_piece(input, piece, first, self.padding_idx) for piece, first in zip(pieces, firsts, strict=False)
        )
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


_SERIALIZED: dict[Any, Any] = {nn.Embedding: SerializedEmbedding, nn.Linear: SerializedLinear}


def serialize(model: Any, config: IPUConfig) -> None:
    """Cut the input embedding and the output projection of a model as the configuration says.

    Args:
        model: A model with ``get_input_embeddings`` and ``get_output_embeddings``.
        config: In the mode (training or inference) that is meant.

    Raises:
        IncompatibleIPUConfigError: If they cannot be cut like that.
    """
    split(model, config)
    for kind, getter in (("embedding", "get_input_embeddings"), ("projection", "get_output_embeddings")):
        factor = getattr(config, f"_{kind}_serialization_factor")
        if factor is None or factor == 1 or not hasattr(model, getter):
            continue
        module = getattr(model, getter)()
        if isinstance(module, InPieces):
            raise IncompatibleIPUConfigError(
                f"`{kind}_serialization_factor={factor}` came with pieces on several IPUs of what it is tied to; "
                "leave it out."
            )
        if type(module) in _SERIALIZED:
            module.__class__ = _SERIALIZED[type(module)]
            module.num_pieces = factor


def without_serialization(model: nn.Module) -> None:
    """Make all embeddings and projections whole again."""
    without_splits(model)
    whole = {serialized: kind for kind, serialized in _SERIALIZED.items()}
    for module in model.modules():
        if type(module) in whole:
            module.__class__ = whole[type(module)]
            del module.num_pieces
