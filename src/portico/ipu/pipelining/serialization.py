"""Large embeddings and projections in pieces, so that no piece needs much memory at once.

*Serialized* modules compute with slices of their weight one after another, on one IPU. *Split* modules have their
pieces on several IPUs; a piece is a parameter for the program, but a view of the whole weight, which the module keeps.
Either way a state dict holds the whole weights under their usual names, so what is saved loads like any other model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from portico.ipu.config import IncompatibleIPUConfigError, IPUConfig


def serialize(model: nn.Module, config: IPUConfig) -> None:
    """Split or serialize the input embedding and the output projection of a model as the configuration says."""
    _split(model, config)
    for kind, getter in _GETTERS.items():
        factor = getattr(config, f"_{kind}_serialization_factor")
        if factor is None or factor == 1 or not hasattr(model, getter):
            continue
        module = getattr(model, getter)()
        if isinstance(module, SplitModule):
            raise IncompatibleIPUConfigError(
                f"`{kind}_serialization_factor={factor}` contradicts splits of the weight it is tied to; leave it out."
            )
        if type(module) in _SERIALIZED_CLASSES:
            module.__class__ = _SERIALIZED_CLASSES[type(module)]
            module.num_pieces = factor


def remove_serialization(model: nn.Module) -> None:
    """Undo :func:`serialize`."""
    for module in list(model.modules()):
        if isinstance(module, SplitModule):
            del module.pieces
            names = ("weight", "bias") if isinstance(module, nn.Linear) else ("weight",)
            whole = module.__dict__.pop("whole")
            module._parameters.update({name: whole.get(name) for name in names})
        elif isinstance(module, SerializedEmbedding | SerializedLinear):
            del module.num_pieces
        else:
            continue
        restore_class(module)


def restore_class(module: nn.Module) -> None:
    """Give ``module`` the class that it had before; the classes made for pipelining have it as their last base."""
    module.__class__ = type(module).__bases__[-1]


# ---- Serialized on one IPU ----


def _look_up(index: Tensor, piece: Tensor, *, first: int, padding_idx: int | None) -> Tensor:
    """Return the rows of a piece of a table that ``index`` points at, and zeros where it points elsewhere.

    The sum over all pieces is the lookup in the whole table. ``index``, ``int [...]``, ``first``, the place of the
    first row of ``piece``, ``float [rows, features]``, and ``padding_idx``, without gradient, count the whole table.
    """
    local = index - first
    padding = None if padding_idx is None or not 0 <= padding_idx - first < len(piece) else padding_idx - first
    inside = (local >= 0) & (local < len(piece))
    rows = functional.embedding(local.clamp(0, len(piece) - 1), piece, padding)
    return torch.where(inside.unsqueeze(-1), rows, torch.zeros_like(rows))


class SerializedEmbedding(nn.Embedding):
    """An embedding whose table is looked up in ``num_pieces`` pieces."""

    num_pieces: int

    def forward(self, input: Tensor) -> Tensor:
        pieces = torch.tensor_split(self.weight, min(self.num_pieces, self.num_embeddings))
        firsts = accumulate(map(len, pieces), initial=0)
        rows = [
            _look_up(input, piece, first=first, padding_idx=self.padding_idx)
            for piece, first in zip(pieces, firsts, strict=False)
        ]
        return sum(rows[1:], start=rows[0])


class SerializedLinear(nn.Linear):
    """A projection whose outputs are computed in ``num_pieces`` pieces."""

    num_pieces: int

    def forward(self, input: Tensor) -> Tensor:
        weights = torch.tensor_split(self.weight, self.num_pieces)
        biases = [None] * len(weights) if self.bias is None else torch.tensor_split(self.bias, self.num_pieces)
        return torch.cat([functional.linear(input, *pair) for pair in zip(weights, biases, strict=True)], dim=-1)


_SERIALIZED_CLASSES: dict[Any, Any] = {nn.Embedding: SerializedEmbedding, nn.Linear: SerializedLinear}


# ---- Split over several IPUs ----


class Piece(nn.Module):
    """Some rows of a parameter, on one IPU; a state dict holds them as part of the whole parameter."""

    def __init__(
        self, kind: str, part: nn.Parameter, *, first: int, ipu_id: int, compute: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.register_parameter(kind, part)
        self.kind = kind
        self.ipu_id = ipu_id
        self._compute = compute
        self.rows = slice(first, first + len(part))

    def forward(self, input: Tensor) -> Tensor:
        return self._compute(input, getattr(self, self.kind))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save nothing."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: object) -> None:
        """Load nothing."""


class SplitModule(nn.Module):
    """A module whose parameters are in pieces; a state dict holds the whole parameters."""

    pieces: nn.ModuleList
    # By their names in the class of the module without pieces.
    whole: dict[str, nn.Parameter]

    # Models look at its shape and its dtype.
    weight: Any = property(lambda module: module.whole["weight"])

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination.update(
            {f"{prefix}{name}": value if keep_vars else value.detach() for name, value in self.whole.items()}
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: object) -> None:
        self._parameters.update(self.whole)
        try:
            super()._load_from_state_dict(state_dict, prefix, *args)
        finally:
            self._parameters.clear()


class SplitEmbedding(SplitModule, nn.Embedding):
    """An embedding whose table is in pieces."""

    def forward(self, input: Tensor) -> Tensor:
        rows: Tensor = sum(piece(input) for piece in self.pieces)
        return rows


class SplitLinear(SplitModule, nn.Linear):
    """A projection whose outputs are in pieces, followed by a piece with the biases if there are any."""

    def forward(self, input: Tensor) -> Tensor:
        outputs = torch.cat([piece(input) for piece in self.pieces if piece.kind == "weight"], dim=-1)
        for piece in self.pieces:
            outputs = piece(outputs) if piece.kind == "bias" else outputs
        return outputs


_SPLIT_CLASSES: Mapping[type, Any] = {nn.Embedding: SplitEmbedding, nn.Linear: SplitLinear}
_GETTERS = {"embedding": "get_input_embeddings", "projection": "get_output_embeddings"}


def _split(model: nn.Module, config: IPUConfig) -> None:
    """Split the input embedding and the output projection, and all modules tied to them, over several IPUs."""
    splits_of_weight: dict[int, list[int]] = {}
    for kind, getter in _GETTERS.items():
        name = f"serialized_{kind}_splits_per_ipu"
        splits = getattr(config, f"_{name}")
        if splits is None:
            continue
        module = getattr(model, getter)() if hasattr(model, getter) else None
        weight = getattr(module, "weight", None)
        if weight is None:
            raise IncompatibleIPUConfigError(
                f"`{name}={splits}` cannot be used with {type(model).__name__}, which has no {kind}; leave it out."
            )
        if splits_of_weight.setdefault(id(weight), splits) != splits:
            raise IncompatibleIPUConfigError(
                f"`{name}={splits}` contradicts `serialized_embedding_splits_per_ipu={splits_of_weight[id(weight)]}`: "
                "embedding and projection are tied, so their pieces are too; set both to the same, or only one."
            )
        for user in list(model.modules()):
            if not isinstance(user, Piece) and any(held is weight for held in user._parameters.values()):
                _split_module(user, splits, name)


def _split_module(module: nn.Module, splits_per_ipu: Sequence[int], name: str) -> None:
    if type(module) not in _SPLIT_CLASSES:
        raise IncompatibleIPUConfigError(
            f"`{name}={list(splits_per_ipu)}` cannot split a {type(module).__name__}, only a plain Embedding or "
            "Linear; leave it out."
        )
    ipus = [ipu for ipu, count in enumerate(splits_per_ipu) for _ in range(count)]
    whole = {kind: parameter for kind, parameter in module._parameters.items() if parameter is not None}
    rows = len(whole["weight"])
    if len(ipus) > rows:
        raise IncompatibleIPUConfigError(
            f"`{name}={list(splits_per_ipu)}` makes {len(ipus)} pieces of {rows} rows; use at most {rows}."
        )
    weights = _pieces_of(whole["weight"], len(ipus))
    module._parameters.clear()
    module.__dict__["whole"] = whole
    module.__class__ = _SPLIT_CLASSES[type(module)]
    pieces = []
    for weight, first, ipu in zip(weights, accumulate(map(len, weights), initial=0), ipus, strict=False):
        compute: Callable[[Tensor, Tensor], Tensor] = functional.linear
        if isinstance(module, SplitEmbedding):
            compute = partial(_look_up, first=first, padding_idx=module.padding_idx)
        pieces.append(Piece("weight", weight, first=first, ipu_id=ipu, compute=compute))
    if "bias" in whole:
        # Biases are small, and often tied to another module's, so they stay together.
        pieces.append(Piece("bias", whole["bias"], first=0, ipu_id=ipus[-1], compute=torch.add))
    module.pieces = nn.ModuleList(pieces)


def _pieces_of(whole: nn.Parameter, count: int) -> list[nn.Parameter]:
    """Return the pieces of a weight, the same ones each time, as an optimizer may hold them."""
    kept: dict[int, list[nn.Parameter]] = whole.__dict__.setdefault("_ipu_pieces", {})
    if count not in kept:
        kept[count] = [
            nn.Parameter(part, requires_grad=whole.requires_grad) for part in torch.tensor_split(whole.data, count)
        ]
    return kept[count]


# ---- Weights and their pieces ----


def parts_of_parameters(model: nn.Module) -> dict[str, list[tuple[str, slice]]]:
    """Return, for each weight of the model, the names of its pieces and the rows of each.

    A weight that is not in pieces is its only part.
    """
    parts = {name: [(name, slice(None))] for name, _ in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, SplitModule):
            parts |= {f"{name}.{kind}": [] for kind in module.whole}
            for number, piece in enumerate(module.pieces):
                assert isinstance(piece, Piece)
                parts[f"{name}.{piece.kind}"].append((f"{name}.pieces.{number}.{piece.kind}", piece.rows))
    return parts


def whole_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the whole weights of a model by name; tied weights under every name."""
    for name, module in model.named_modules():
        if not isinstance(module, Piece):
            held = module.whole if isinstance(module, SplitModule) else module._parameters
            yield from ((f"{name}.{kind}".lstrip("."), value) for kind, value in held.items() if value is not None)
