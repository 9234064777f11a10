"""Lookups in a piece of a table."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from portico.ipu.config import IncompatibleIPUConfigError, IPUConfig


def rows_of_piece(index: Tensor, piece: Tensor, first: int, padding_idx: int | None) -> Tensor:
    """Return the rows that ``index`` points at in a piece of a table, and zeros where it points elsewhere.

    Args:
        index: Rows of the whole table, ``int [...]``.
        piece: Some of its rows, ``float [rows, features]``.
        first: The first of them in the whole table.
        padding_idx: Row of the whole table that is looked up, and gets no gradient.

    Returns:
        ``float [..., features]``; the sum over all pieces is the lookup in the whole table.
    """
    local = index - first
    padding = None if padding_idx is None or not 0 <= padding_idx - first < len(piece) else padding_idx - first
    inside = (local >= 0) & (local < len(piece))
    rows = functional.embedding(local.clamp(0, len(piece) - 1), piece, padding)
    return torch.where(inside.unsqueeze(-1), rows, torch.zeros_like(rows))


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


_PIECES = "_ipu_pieces"
_SPLIT_CLASSES: Mapping[type, Any] = {nn.Embedding: SplitEmbedding, nn.Linear: SplitLinear}


def split(model: Any, config: IPUConfig) -> None:
    """Cut the input embedding and the output projection into pieces on several IPUs, as the configuration says.

    Everything else that is tied to them is cut likewise.

    Args:
        model: A model with ``get_input_embeddings`` and ``get_output_embeddings``.
        config: In the mode (training or inference) that is meant.

    Raises:
        IncompatibleIPUConfigError: If there is nothing to cut, or something that cannot be cut.
    """
    splits = {
        "embedding": (config._serialized_embedding_splits_per_ipu, "get_input_embeddings"),
        "projection": (config._serialized_projection_splits_per_ipu, "get_output_embeddings"),
    }
    cut: dict[int, list[int]] = {}
    for kind, (per_ipu, getter) in splits.items():
        if per_ipu is None:
            continue
        name = f"serialized_{kind}_splits_per_ipu"
        module = getattr(model, getter)() if hasattr(model, getter) else None
        weight = getattr(module, "weight", None)
        if weight is None:
            raise IncompatibleIPUConfigError(
                f"`{name}={per_ipu}` came with {type(model).__name__}, which has no {kind} to cut; leave it out."
            )
        if cut.setdefault(id(weight), per_ipu) != per_ipu:
            raise IncompatibleIPUConfigError(
                f"`{name}={per_ipu}` contradicts `serialized_embedding_splits_per_ipu={cut[id(weight)]}`: embedding "
                "and projection are tied, and so are their pieces; set both alike, or one alone."
            )
        for user in _whole_users_of(model, weight):
            _split_module(user, per_ipu, name)


def without_splits(model: nn.Module) -> None:
    """Make all embeddings and projections whole again."""
    for module in list(model.modules()):
        if isinstance(module, InPieces):
            module.__class__ = module.whole_class  # type: ignore[assignment]
            del module.pieces
            names = ("weight", "bias") if isinstance(module, nn.Linear) else ("weight",)
            whole = module.__dict__.pop("whole")
            module._parameters.update({name: whole.get(name) for name in names})


def piece_ipus(model: nn.Module) -> dict[str, int]:
    """Return the IPU of every piece by its name."""
    return {name: module.ipu_id for name, module in model.named_modules() if isinstance(module, Piece)}


def parts_of_parameters(model: nn.Module) -> dict[str, list[tuple[str, slice]]]:
    """Return the parameters that stand for each weight of the model, and which rows of it they are.

    Args:
        model: The model; a weight that is not in pieces stands for itself.
    """
    parts = {name: [(name, slice(None))] for name, _ in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, InPieces):
            for kind in module.whole:
                parts[f"{name}.{kind}"] = list(_parts(name, kind, module.pieces))
    return parts


def whole_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the weights of a model by name, those that are in pieces as a whole; tied ones under every name."""
    for name, module in model.named_modules():
        if not isinstance(module, Piece):
            held = module.whole if isinstance(module, InPieces) else module._parameters
            yield from ((f"{name}.{kind}".lstrip("."), value) for kind, value in held.items() if value is not None)


def _parts(module_name: str, kind: str, pieces: nn.ModuleList) -> Iterator[tuple[str, slice]]:
    first = 0
    for number, piece in enumerate(pieces):
        if kind in piece._parameters:
            size = len(getattr(piece, kind))
            yield f"{module_name}.pieces.{number}.{kind}", slice(first, first + size)
            first += size


def _whole_users_of(model: nn.Module, weight: Tensor) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if not isinstance(module, Piece) and any(held is weight for held in module._parameters.values())
    ]


def _split_module(module: Any, per_ipu: Sequence[int], name: str) -> None:
    if type(module) not in _SPLIT_CLASSES:
        raise IncompatibleIPUConfigError(
            f"`{name}={list(per_ipu)}` would cut a {type(module).__name__}, and only a plain Embedding or Linear can "
            "be cut; leave it out."
        )
    ipus = [ipu for ipu, count in enumerate(per_ipu) for _ in range(count)]
    rows = len(module.weight)
    if len(ipus) > rows:
        raise IncompatibleIPUConfigError(
            f"`{name}={list(per_ipu)}` makes {len(ipus)} pieces of {rows} rows; use at most {rows}."
        )
    whole = {kind: parameter for kind, parameter in module._parameters.items() if parameter is not None}
    weights = _pieces_of(whole["weight"], len(ipus))
    module._parameters.clear()
    module.__dict__["whole"] = whole
    module.__class__ = _SPLIT_CLASSES[type(module)]
    if isinstance(module, SplitEmbedding):
        firsts = accumulate(map(len, weights), initial=0)
        pieces: list[nn.Module] = [
            EmbeddingPiece(weight, first=first, ipu_id=ipu, padding_idx=module.padding_idx)
            for weight, first, ipu in zip(weights, firsts, ipus, strict=False)
        ]
    else:
        pieces = [LinearPiece(weight, ipu_id=ipu) for weight, ipu in zip(weights, ipus, strict=True)]
        pieces += [Bias(whole["bias"], ipu_id=ipus[-1])] if "bias" in whole else []
    module.pieces = nn.ModuleList(pieces)


def _pieces_of(whole: nn.Parameter, count: int) -> list[nn.Parameter]:
    """Return the pieces of a weight; the same ones each time, as an optimizer may hold them."""
    kept: dict[int, list[nn.Parameter]] = whole.__dict__.setdefault(_PIECES, {})
    if count not in kept:
        kept[count] = [
            nn.Parameter(part, requires_grad=whole.requires_grad) for part in torch.tensor_split(whole.data, count)
        ]
    return kept[count]


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
