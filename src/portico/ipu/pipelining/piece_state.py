"""Optimizer state of weights in pieces, made that of the same weights in other pieces."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portico.ipu.pipelining.splitting import parts_of_parameters

# A piece of a weight, and the group of replicas that the state belongs to.
_PIECE = re.compile(r"(?P<module>.+)\.pieces\.(?P<number>\d+)\.(?P<kind>weight|bias)(?P<group>\[\d+\])?")
_GROUP = re.compile(r"(?P<name>.+?)(?P<group>\[\d+\])?")
# A program holds the model under this name.
PROGRAM_PREFIX = "model."

WeightState = Mapping[str, Tensor]


def recut(state: Mapping[str, Any], optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of a saved optimizer for a model whose weights may be in other pieces than when it was saved.

    Args:
        state: What ``state_dict`` of an optimizer of ``poptorch.optim`` returned, from any model with these weights.
        optimizer: The one that is to go on from it.
        model: The model, in its present pieces.
    """
    saved = state.get("ipu_state")
    if not saved:
        return dict(state)
    parts = parts_of_parameters(model)
    present: dict[str, WeightState] = {}
    for name, whole in _joined(saved).items():
        group = _GROUP.fullmatch(name)
        assert group is not None
        weight, suffix = group["name"].removeprefix(PROGRAM_PREFIX), group["group"] or ""
        if weight not in parts:
            present[name] = whole
            continue
        for part, rows in parts[weight]:
            present[f"{PROGRAM_PREFIX}{part}{suffix}"] = {key: value[rows].clone() for key, value in whole.items()}
    groups = _with_members_of(optimizer, state["param_groups"])
    return {**state, "ipu_state": present, "param_groups": groups}


def _joined(state: Mapping[str, WeightState]) -> dict[str, WeightState]:
    """Return the state of whole weights by name."""
    pieces: dict[str, list[tuple[int, WeightState]]] = defaultdict(list)
    whole: dict[str, WeightState] = {}
    for name, held in state.items():
        piece = _PIECE.fullmatch(name)
        if piece is None:
            whole[name] = held
        else:
            weight = f"{piece['module']}.{piece['kind']}{piece['group'] or ''}"
            pieces[weight].append((int(piece["number"]), held))
    for weight, numbered in pieces.items():
        ordered = [held for _, held in sorted(numbered, key=lambda pair: pair[0])]
        whole[weight] = {key: torch.cat([held[key] for held in ordered]) for key in ordered[0]}
    return whole


def _with_members_of(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return saved groups with as many members as those of ``optimizer`` have, where there are as many groups."""
    present = optimizer.state_dict()["param_groups"]
    if len(present) != len(groups):
        return groups
    return [{**saved, "params": own["params"]} for saved, own in zip(groups, present, strict=True)]
