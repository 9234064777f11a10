"""Where each part of a model lies, and the blocks that say so to a program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from portico.ipu import backend
from portico.ipu.config import IPUConfig
from portico.ipu.config.errors import IncompatibleIPUConfigError
from portico.ipu.pipelining.handed_out import hand_out_copies, without_copies
from portico.ipu.pipelining.layers import layer_ipus
from portico.ipu.pipelining.options import check_options
from portico.ipu.pipelining.order import execution_order
from portico.ipu.pipelining.recomputation import recompute_from, without_recomputation
from portico.ipu.pipelining.serialization import without_serialization
from portico.ipu.pipelining.splitting import piece_ipus
from portico.ipu.pipelining.stacks import layer_names


@dataclass(frozen=True)
class Placement:
    """Where each part of a model lies.

    Args:
        steps: Layers and modules between them in the order they run, each with its IPU.
        layers: Names of the layers.
        num_ipus: IPUs of a replica.
        ipu_of_parameter: IPU of each parameter that is used, by name.
        handing_out: Modules that are never called, whose weights are read by others.
    """

    steps: tuple[tuple[str, int], ...]
    layers: tuple[str, ...]
    num_ipus: int
    ipu_of_parameter: Mapping[str, int]
    handing_out: tuple[str, ...] = ()

    @property
    def num_stages(self) -> int:
        """Pipeline stages: one more than there are changes of the IPU along the way."""
        ipus = [ipu for _, ipu in self.steps]
        return 1 + sum(before != after for before, after in pairwise(ipus))

    @property
    def minimum_gradient_accumulation(self) -> int:
        """Micro-batches that fill the pipeline of a training program forward and backward."""
        return 2 * self.num_stages - 1

    def stages(self) -> list[tuple[int, list[str]]]:
        """Return the stages in order, each with its IPU and what runs in it."""
        found: list[tuple[int, list[str]]] = []
        for name, ipu in self.steps:
            if not found or found[-1][0] != ipu:
                found.append((ipu, []))
            found[-1][1].append(name)
        return found


def place(model: nn.Module, sample: Mapping[str, Any], config: IPUConfig) -> Placement:
    """Spread a model over the IPUs of a replica, by blocks.

    Layers go where ``layers_per_ipu`` says. What runs before the first layer is on IPU 0; what runs later is on IPU 0
    if it shares a parameter with what is there (a tied head), else where the pipeline has come to. ``layers`` (names
    of stacks) and ``modules`` (an IPU by the name of a module or of a part that holds it) in ``parallelize_kwargs``
    decide otherwise. Pieces of embeddings and projections are where the configuration puts them.

    Args:
        model: The model, without blocks.
        sample: Inputs of a micro-batch, to see in which order the model runs.
        config: In the mode (training or inference) that the placement is for.

    Raises:
        IncompatibleIPUConfigError: If layers are shared, the numbers do not fit, or a parameter is on several IPUs.
    """
    placement = plan_placement(model, sample, config)
    last: int | None = None
    begun: set[int] = set()
    for name, ipu in placement.steps:
        module = model.get_submodule(name)
        # Called again, a module begins its block again.
        if ipu != last and id(module) not in begun:
            backend.BeginBlock(module, user_id=name, ipu_id=ipu)
            begun.add(id(module))
        last = ipu
    hand_out_copies(model.get_submodule(name) for name in placement.handing_out)
    if config.recompute_checkpoint_every_layer and config.mode == "training":
        recompute_from(model, placement.layers[:-1])
    return placement


def unplaced(model: nn.Module) -> None:
    """Take blocks and recomputation away from a model."""
    backend.removeBlocks(model)
    without_recomputation(model)
    without_copies(model)
    without_serialization(model)


def plan_placement(model: nn.Module, sample: Mapping[str, Any], config: IPUConfig) -> Placement:
    """Return where :func:`place` would put everything, and leave the model as it is."""
    options = config._parallelize_kwargs or {}
    check_options(options, model, config._ipus_per_replica)
    layers = layer_names(model, options.get("layers"))
    order = execution_order(model, layers, sample)
    used = [name for name in order if name in layers]
    _refuse_shared_layers(model, used)
    ipus = layer_ipus(config._layers_per_ipu, config._ipus_per_replica, len(used))
    told = {**(options.get("modules") or {}), **piece_ipus(model)}
    steps = _steps(model, order, dict(zip(used, ipus, strict=True)), told)
    placed = _parameters(model, steps, set(used))
    handing_out = _handing_out(model, placed)
    return Placement(tuple(steps), tuple(used), config._ipus_per_replica, placed, handing_out)


def _handing_out(model: nn.Module, placed: Mapping[str, int]) -> tuple[str, ...]:
    called = {id(model.get_parameter(name)) for name in placed}
    return tuple(
        name
        for name, module in model.named_modules()
        if module._parameters and not any(id(parameter) in called for parameter in module._parameters.values())
    )


def _refuse_shared_layers(model: nn.Module, used: Sequence[str]) -> None:
    shared = sorted({name for name in used if used.count(name) > 1})
    if shared:
        raise IncompatibleIPUConfigError(
            f"{type(model).__name__} runs the layer {shared[0]} {used.count(shared[0])} times with the same weights, "
            "and weights lie on one IPU: layers that are shared cannot be spread; set `ipus_per_replica=1` and "
            "`layers_per_ipu=[-1]`."
        )
    if not used:
        raise IncompatibleIPUConfigError(
            f"No layers were found in {type(model).__name__}; name its `ModuleList`s of layers in "
            "`parallelize_kwargs={'layers': [...]}`, or set `ipus_per_replica=1`."
        )


def _steps(
    model: nn.Module, order: Sequence[str], ipu_of_layer: Mapping[str, int], told: Mapping[str, int]
) -> list[tuple[str, int]]:
    steps: list[tuple[str, int]] = []
    on_first: set[int] = set()
    current = 0
    for name in order:
        own = {id(parameter) for parameter in model.get_submodule(name)._parameters.values()}
        if name in ipu_of_layer:
            ipu = ipu_of_layer[name]
        elif (ipu_told := _told(name, told)) is not None:
            ipu = ipu_told
        elif own & on_first:
            ipu = 0
        else:
            ipu = current
        if ipu == 0 and name not in ipu_of_layer:
            on_first |= own
        steps.append((name, ipu))
        current = ipu
    return steps


def _told(name: str, told: Mapping[str, int]) -> int | None:
    matches = [part for part in told if name == part or name.startswith(f"{part}.")]
    return told[max(matches, key=len)] if matches else None


def _parameters(model: nn.Module, steps: Sequence[tuple[str, int]], layers: set[str]) -> dict[str, int]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ipus: dict[str, set[int]] = {}
    for name, ipu in steps:
        module = model.get_submodule(name)
        held = module.parameters() if name in layers else module._parameters.values()
        for parameter in held:
            if parameter is not None:
                ipus.setdefault(names[id(parameter)], set()).add(ipu)
    split = {name: sorted(where) for name, where in ipus.items() if len(where) > 1}
    if split:
        listed = "; ".join(f"{name} is used on IPUs {where}" for name, where in split.items())
        raise IncompatibleIPUConfigError(
            f"A parameter has to stay on one IPU: {listed}. Tied weights belong on the same IPU; leave the modules "
            "that share them out of `parallelize_kwargs`."
        )
    return {name: min(where) for name, where in ipus.items()}
