"""Embeddings and projections whose pieces lie on several IPUs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from portico.ipu.config import IPUConfig
from portico.ipu.config.errors import IncompatibleIPUConfigError
from portico.ipu.pipelining.pieces import (
    Bias,
    EmbeddingPiece,
    InPieces,
    LinearPiece,
    Piece,
    SplitEmbedding,
    SplitLinear,
)

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
