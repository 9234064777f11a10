"""Placement of a model: the IPU of each part, and the blocks that tell a program about it."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

from portico.ipu import backend
from portico.ipu.config import IncompatibleIPUConfigError, IPUConfig
from portico.ipu.pipelining.layers import execution_order, layer_ipus, layer_names
from portico.ipu.pipelining.serialization import piece_ipus, remove_serialization

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placement:
    """The IPU of each part of a model.

    Args:
        steps: Layers and the modules between them in the order they run, each with its IPU.
        layers: Names of the layers.
        num_ipus: IPUs of a replica.
        ipu_of_parameter: IPU of each parameter that is used, by name.
        uncalled: Modules that are never called, and whose parameters other modules read.
    """

    steps: tuple[tuple[str, int], ...]
    layers: tuple[str, ...]
    num_ipus: int
    ipu_of_parameter: Mapping[str, int]
    uncalled: tuple[str, ...] = ()

    def stages(self) -> list[tuple[int, list[str]]]:
        """Return the pipeline stages in order, each with its IPU and what runs in it."""
        return [(ipu, [name for name, _ in steps]) for ipu, steps in groupby(self.steps, key=itemgetter(1))]

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.stages())

    @property
    def minimum_gradient_accumulation(self) -> int:
        """Micro-batches that fill the pipeline of a training program forward and backward."""
        # In training `poptorch` adds n - 1 stages for the backward pass, and wants as many micro-batches as stages.
        return 2 * self.num_stages - 1


def place(model: nn.Module, sample: Mapping[str, Any], config: IPUConfig) -> Placement:
    """Spread a model over the IPUs of a replica, in place.

    Layers go where ``layers_per_ipu`` says. What runs before the first layer is on IPU 0. What runs later is on IPU 0
    if it shares a parameter with what is there (a tied head), otherwise on the IPU of the layer before it. In
    ``parallelize_kwargs``, ``layers`` (names of stacks) and ``modules`` (IPUs by the name of a module or of a parent)
    override this. Pieces of embeddings and projections are where the configuration puts them.

    Args:
        model: The model, without blocks.
        sample: Inputs of a micro-batch, which show in which order the modules run.
        config: In the mode (training or inference) to place the model for.

    Raises:
        IncompatibleIPUConfigError: If layers are shared, the numbers do not fit, or a parameter is on several IPUs.
    """
    placement = plan_placement(model, sample, config)
    last: int | None = None
    begun: set[int] = set()
    for name, ipu in placement.steps:
        module = model.get_submodule(name)
        # A module that is called again begins its block again by itself.
        if ipu != last and id(module) not in begun:
            backend.BeginBlock(module, user_id=name, ipu_id=ipu)
            begun.add(id(module))
        last = ipu
    _read_parameters_as_copies(model.get_submodule(name) for name in placement.uncalled)
    if config.recompute_checkpoint_every_layer and config.mode == "training":
        # Nothing is recomputed after the last layer.
        for name in placement.layers[:-1]:
            model.get_submodule(name).register_forward_hook(_mark_recomputation_checkpoint)
    return placement


def remove_placement(model: nn.Module) -> None:
    """Undo :func:`place`, and make weights that are in pieces whole again."""
    backend.removeBlocks(model)
    for module in model.modules():
        for number, hook in list(module._forward_hooks.items()):
            if hook is _mark_recomputation_checkpoint:
                del module._forward_hooks[number]
        if _reads_parameters_as_copies(module):
            module.__class__ = type(module).__bases__[0]
    remove_serialization(model)


def _mark_recomputation_checkpoint(module: nn.Module, inputs: Any, output: Any) -> Any:
    """Forward hook of a layer whose output is kept, so that what lies between two layers is recomputed from it."""
    if isinstance(output, Tensor):
        return backend.recomputationCheckpoint(output)
    return (backend.recomputationCheckpoint(output[0]), *output[1:]) if isinstance(output, tuple) else output


# Parameters that other modules read


_COPYING_PREFIX = "Copying"


def _read_parameters_as_copies(modules: Iterable[nn.Module]) -> None:
    """Make the parameters of ``modules`` readable on other IPUs.

    A parameter lies on one IPU. One that is passed from layer to layer, as DeBERTa passes its relative positions, must
    leave that IPU as an activation: as a copy of it, made where it is read first.
    """
    for module in modules:
        kind = type(module)
        readers: dict[str, Any] = {name: property(_copy_of(name)) for name in module._parameters}
        module.__class__ = type(f"{_COPYING_PREFIX}{kind.__name__}", (kind,), {**readers, "__module__": __name__})


def _reads_parameters_as_copies(module: nn.Module) -> bool:
    return type(module).__name__.startswith(_COPYING_PREFIX) and type(module).__module__ == __name__


def _copy_of(name: str) -> Any:
    def read(module: nn.Module) -> Tensor | None:
        parameter = module._parameters[name]
        return None if parameter is None else parameter.clone()

    return read


# The plan


def plan_placement(model: nn.Module, sample: Mapping[str, Any], config: IPUConfig) -> Placement:
    """Return the placement that :func:`place` would make, without changing the model."""
    options = config._parallelize_kwargs or {}
    _check_options(options, model, config._ipus_per_replica)
    layers = layer_names(model, options.get("layers"))
    order = execution_order(model, layers, sample)
    used = [name for name in order if name in layers]
    _check_layers(model, used)
    ipus = layer_ipus(config._layers_per_ipu, config._ipus_per_replica, len(used))
    chosen = {**(options.get("modules") or {}), **piece_ipus(model)}
    steps = _steps(model, order, dict(zip(used, ipus, strict=True)), chosen)
    placed = _parameters(model, steps, set(used))
    return Placement(tuple(steps), tuple(used), config._ipus_per_replica, placed, _uncalled(model, placed))


_OPTIONS = ("layers", "modules")
# How the models of optimum-graphcore cache what they have generated; programs here do not.
_GENERATION_OPTIONS = (
    "batch_size",
    "max_length",
    "num_beams",
    "on_device_generation_steps",
    "use_cache",
    "use_cross_cache",
    "use_encoder_output_buffer",
)


def _check_options(options: Mapping[str, Any], model: nn.Module, num_ipus: int) -> None:
    without_effect = sorted(set(options) & set(_GENERATION_OPTIONS))
    if without_effect:
        logger.warning(
            "`parallelize_kwargs` has %s, which has no effect here: tokens are generated without caches, in programs "
            "made for each shape.",
            ", ".join(without_effect),
        )
    unknown = sorted(set(options) - set(_OPTIONS) - set(_GENERATION_OPTIONS))
    if unknown:
        raise IncompatibleIPUConfigError(
            f"Unknown `parallelize_kwargs` {', '.join(unknown)}; expected {' and '.join(_OPTIONS)}."
        )
    names = {name for name, _ in model.named_modules()}
    for name, ipu in (options.get("modules") or {}).items():
        if name not in names:
            raise IncompatibleIPUConfigError(
                f"`parallelize_kwargs` places the module {name!r}, which {type(model).__name__} does not have; name "
                "one of `model.named_modules()`."
            )
        if ipu not in range(num_ipus):
            raise IncompatibleIPUConfigError(
                f"`parallelize_kwargs` puts {name} on IPU {ipu!r}; a replica has the IPUs 0 to {num_ipus - 1}."
            )


def _check_layers(model: nn.Module, used: Sequence[str]) -> None:
    shared = sorted({name for name in used if used.count(name) > 1})
    if shared:
        raise IncompatibleIPUConfigError(
            f"{type(model).__name__} runs the layer {shared[0]} {used.count(shared[0])} times with the same weights, "
            "but weights lie on one IPU, so shared layers cannot be spread; set `ipus_per_replica=1` and "
            "`layers_per_ipu=[-1]`."
        )
    if not used:
        raise IncompatibleIPUConfigError(
            f"No layers were found in {type(model).__name__}; name its `ModuleList`s of layers in "
            "`parallelize_kwargs={'layers': [...]}`, or set `ipus_per_replica=1`."
        )


def _steps(
    model: nn.Module, order: Sequence[str], ipu_of_layer: Mapping[str, int], chosen: Mapping[str, int]
) -> list[tuple[str, int]]:
    steps: list[tuple[str, int]] = []
    on_first: set[int] = set()
    current = 0
    for name in order:
        own = {id(parameter) for parameter in model.get_submodule(name)._parameters.values()}
        if name in ipu_of_layer:
            ipu = ipu_of_layer[name]
        elif (chosen_ipu := _chosen_ipu(name, chosen)) is not None:
            ipu = chosen_ipu
        elif own & on_first:
            # Tied to an embedding, such as the head of a masked language model.
            ipu = 0
        else:
            ipu = current
        if ipu == 0 and name not in ipu_of_layer:
            on_first |= own
        steps.append((name, ipu))
        current = ipu
    return steps


def _chosen_ipu(name: str, chosen: Mapping[str, int]) -> int | None:
    """Return the IPU chosen for a module, or else for its nearest parent."""
    matches = [part for part in chosen if name == part or name.startswith(f"{part}.")]
    return chosen[max(matches, key=len)] if matches else None


def _parameters(model: nn.Module, steps: Sequence[tuple[str, int]], layers: set[str]) -> dict[str, int]:
    """Return the IPU of each parameter that the steps use."""
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
            f"A parameter must stay on one IPU: {listed}. Tied weights belong on the same IPU; leave the modules "
            "that share them out of `parallelize_kwargs`."
        )
    return {name: min(where) for name, where in ipus.items()}


def _uncalled(model: nn.Module, placed: Mapping[str, int]) -> tuple[str, ...]:
    called = {id(model.get_parameter(name)) for name in placed}
    return tuple(
        name
        for name, module in model.named_modules()
        if module._parameters and not any(id(parameter) in called for parameter in module._parameters.values())
    )
