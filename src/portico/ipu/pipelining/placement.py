"""Placement of a model: its layers, the IPU of each part, and the blocks that declare it to a program."""

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GradientCheckpointingLayer

from portico.compat.annotations import Nested
from portico.compat.tree import map_tensors
from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.config import IncompatibleIPUConfigError, IPUConfig
from portico.ipu.pipelining.serialization import Piece, remove_serialization, restore_class

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LayerPlacement:
    """The IPU of each part of a model."""

    steps: tuple[tuple[str, int], ...]
    """Layers, and the modules between them, in the order they run, each with its IPU."""
    layers: tuple[str, ...]
    """Names of the layers."""
    num_ipus: int
    """IPUs of a replica."""
    ipu_of_parameter: Mapping[str, int]
    """IPUs of the parameters that are used."""
    uncalled: tuple[str, ...]
    """Modules that are never called, but whose parameters other modules read."""

    def stages(self) -> list[tuple[int, list[str]]]:
        """Return the pipeline stages in order, each with its IPU and what runs in it."""
        return [(ipu, [name for name, _ in steps]) for ipu, steps in groupby(self.steps, key=itemgetter(1))]

    @property
    def minimum_gradient_accumulation(self) -> int:
        """Micro-batches that fill the pipeline of a training program forward and backward."""
        # In training `poptorch` adds n - 1 stages for the backward pass, and wants as many micro-batches as stages.
        return 2 * len(self.stages()) - 1


def place(
    model: nn.Module, sample: Mapping[str, Any], config: IPUConfig, *, is_forced: bool = False
) -> LayerPlacement:
    """Spread a model over the IPUs of a replica, in place.

    Layers go where ``layers_per_ipu`` says. Modules that run before the first layer are on IPU 0. Later modules are on
    IPU 0 if they share a parameter with a module there (a tied head), otherwise on the IPU of the layer before. In
    ``parallelize_kwargs``, ``layers`` (names of stacks) and ``modules`` (IPUs by the name of a module or of a parent)
    override this. Pieces of embeddings and projections are where the configuration puts them.

    Args:
        model: The model.
        sample: A micro-batch.
        config: The configuration.
        is_forced: Leave a model whose layers cannot be spread on IPU 0, instead of raising.

    Raises:
        IncompatibleIPUConfigError: If there are no layers, or they are shared, the numbers do not fit, or a parameter
            is on several IPUs.
    """
    placement = plan_placement(model, sample, config, is_forced=is_forced)
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
        if _READS_COPIES in vars(type(module)):
            restore_class(module)
    remove_serialization(model)


def _mark_recomputation_checkpoint(module: nn.Module, inputs: tuple[Nested, ...], output: Nested) -> Nested:
    """Forward hook of a layer whose output is kept, and from which the following layer is recomputed."""
    if isinstance(output, Tensor):
        return backend.recomputationCheckpoint(output)
    return (backend.recomputationCheckpoint(output[0]), *output[1:]) if isinstance(output, tuple) else output


# ---- Parameters that other modules read ----

# An attribute of the classes made below.
_READS_COPIES = "_ipu_reads_copies"


def _read_parameters_as_copies(modules: Iterable[nn.Module]) -> None:
    """Make the parameters of ``modules`` readable on other IPUs.

    A parameter is stored on one IPU. One that is passed from layer to layer, as DeBERTa passes its relative positions,
    must leave that IPU as an activation: as a copy, which is made where the parameter is read first.
    """
    for module in modules:
        kind = type(module)
        readers: dict[str, Any] = {name: property(partial(_read_copy, name)) for name in module._parameters}
        module.__class__ = type(kind.__name__, (kind,), {**readers, _READS_COPIES: True})


def _read_copy(name: str, module: nn.Module) -> Tensor | None:
    parameter = module._parameters[name]
    return None if parameter is None else parameter.clone()


# ---- The plan ----


def plan_placement(
    model: nn.Module, sample: Mapping[str, Any], config: IPUConfig, *, is_forced: bool = False
) -> LayerPlacement:
    """Return the placement that :func:`place` would make, without changing the model."""
    options = config._parallelize_kwargs or {}
    _check_options(options, model, config._ipus_per_replica)
    layers = layer_names(model, options.get("layers"))
    order = execution_order(model, layers, sample)
    used = [name for name in order if name in layers]
    chosen = options.get("modules") or {}
    obstacle = _obstacle_to_spreading(model, used, has_chosen=bool(chosen))
    ipu_of_layer: dict[str, int] = {}
    if obstacle is None:
        ipus = layer_ipus(config._layers_per_ipu, config._ipus_per_replica, len(used))
        ipu_of_layer = dict(zip(used, ipus, strict=True))
    elif is_forced:
        logger.warning("`force_to_pipelined=True` leaves the layers of the model on IPU 0: %s", obstacle)
    else:
        raise IncompatibleIPUConfigError(f"{obstacle} Otherwise set `force_to_pipelined=True`: it runs on one IPU.")
    pieces = {name: module.ipu_id for name, module in model.named_modules() if isinstance(module, Piece)}
    steps = _steps(model, order, ipu_of_layer, {**chosen, **pieces})
    placed = _parameters(model, steps, set(used))
    in_use = {id(model.get_parameter(name)) for name in placed}
    uncalled = tuple(
        name
        for name, module in model.named_modules()
        if module._parameters and in_use.isdisjoint(map(id, module._parameters.values()))
    )
    return LayerPlacement(tuple(steps), tuple(used), config._ipus_per_replica, placed, uncalled)


_OPTIONS = ("layers", "modules")
# Caches of generated tokens in optimum-graphcore's models; programs here have none.
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
    if without_effect := sorted(set(options) & set(_GENERATION_OPTIONS)):
        logger.warning(
            "`parallelize_kwargs` has %s, which has no effect: tokens are generated without caches, in programs made "
            "for each shape; leave it out.",
            ", ".join(without_effect),
        )
    if unknown := sorted(set(options) - set(_OPTIONS) - set(_GENERATION_OPTIONS)):
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


def _obstacle_to_spreading(model: nn.Module, used: Sequence[str], *, has_chosen: bool) -> str | None:
    shared = sorted({name for name in used if used.count(name) > 1})
    if shared:
        return (
            f"{type(model).__name__} runs the layer {shared[0]} {used.count(shared[0])} times with the same weights, "
            "but weights are stored on one IPU, so shared layers cannot be spread; set `ipus_per_replica=1` and "
            "`layers_per_ipu=[-1]`."
        )
    if not used and not has_chosen:
        return (
            f"No layers were found in {type(model).__name__}; name its `ModuleList`s of layers in "
            "`parallelize_kwargs={'layers': [...]}`, place its modules with `parallelize_kwargs={'modules': {...}}`, "
            "or set `ipus_per_replica=1`."
        )
    return None


def _steps(
    model: nn.Module, order: Sequence[str], ipu_of_layer: Mapping[str, int], chosen: Mapping[str, int]
) -> list[tuple[str, int]]:
    steps: list[tuple[str, int]] = []
    on_first: set[int] = set()
    current = 0
    for name in order:
        own = {id(parameter) for parameter in model.get_submodule(name)._parameters.values()}
        # The module itself or a parent, of which the nearest counts.
        placed = [part for part in chosen if name == part or name.startswith(f"{part}.")]
        if name in ipu_of_layer:
            current = ipu_of_layer[name]
        elif placed:
            current = chosen[max(placed, key=len)]
        elif own & on_first:
            # Tied to an embedding, such as the head of a masked language model.
            current = 0
        if current == 0 and name not in ipu_of_layer:
            on_first |= own
        steps.append((name, current))
    return steps


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
            f"A parameter must stay on one IPU: {listed}. Tied weights belong on the same IPU; leave the modules "
            "that share them out of `parallelize_kwargs`."
        )
    return {name: min(where) for name, where in ipus.items()}


# ---- Layers ----

_WILDCARD = -1


def layer_names(model: nn.Module, stacks: Sequence[str] | None = None) -> list[str]:
    """Return the names of the layers of a model, stack by stack.

    A stack is a topmost ``ModuleList`` of layers. Layers are the modules that ``transformers`` can checkpoint, or else
    those listed in ``_no_split_modules``, or else those whose class is named ``...Layer`` or ``...Block``.
    """
    names = []
    for stack in _find_stacks(model) if stacks is None else stacks:
        try:
            layers = model.get_submodule(stack)
        except AttributeError as error:
            raise InputError(f"The model has no layers {stack!r}: {error}; name one of its `ModuleList`s.") from error
        if not isinstance(layers, nn.ModuleList):
            raise InputError(f"{stack!r} is a {type(layers).__name__}; name a `ModuleList` of layers.")
        names += [f"{stack}.{index}" for index in range(len(layers))]
    return names


def _find_stacks(model: nn.Module) -> list[str]:
    unsplit = set(getattr(model, "_no_split_modules", None) or ())
    criteria: tuple[Callable[[nn.Module], bool], ...] = (
        lambda module: isinstance(module, GradientCheckpointingLayer),
        lambda module: type(module).__name__ in unsplit,
        lambda module: type(module).__name__.endswith(("Layer", "Block")),
    )
    for is_layer in criteria:
        found = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and len(module) and all(map(is_layer, module))
        ]
        if found:
            return [name for name in found if not name.startswith(tuple(f"{other}." for other in found))]
    return []


def execution_order(model: nn.Module, layers: Sequence[str], sample: Mapping[str, Any]) -> list[str]:
    """Run a micro-batch forward once, and return the modules with parameters in the order they are called.

    These are layers, and modules outside the layers that hold parameters themselves; a module that is called several
    times is listed several times.
    """
    called: list[str] = []
    inside = tuple(f"{layer}." for layer in layers)
    names: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        inner = {id(parameter) for child in module.children() for parameter in child.parameters()}
        # A module that holds parameters which no module inside it holds too uses them itself.
        uses_own = any(param is not None and id(param) not in inner for param in module._parameters.values())
        if name in layers or (uses_own and not name.startswith(inside)):
            names.setdefault(module, name)
    # `append` returns None; a pre-hook that returns something else replaces the inputs.
    hooks = [module.register_forward_pre_hook(lambda module, inputs: called.append(names[module])) for module in names]
    modes = [(module, module.training) for module in model.modules()]
    buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()
            model(**map_tensors(Tensor.clone, dict(sample)))
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes:
            module.training = mode
        for name, tensor in model.named_buffers():
            tensor.data.copy_(buffers[name])
    return called


def layer_ipus(layers_per_ipu: Sequence[int], num_ipus: int, num_layers: int) -> list[int]:
    """Return the IPU of each layer; IPUs with -1 share the remaining layers, the last of them taking the rest."""
    counts = _layer_counts(layers_per_ipu, num_ipus, num_layers)
    return [ipu for ipu, count in enumerate(counts) for _ in range(count)]


def _layer_counts(layers_per_ipu: Sequence[int], num_ipus: int, num_layers: int) -> list[int]:
    if num_ipus == 1:
        return [num_layers]
    counts = [_WILDCARD] * num_ipus if list(layers_per_ipu) == [_WILDCARD] else list(layers_per_ipu)
    if len(counts) != num_ipus:
        raise IncompatibleIPUConfigError(
            "layers_per_ipu has a non-default value set, but its length does not match ipus_per_replica: "
            f"{list(layers_per_ipu)} for {num_ipus} IPUs; give one number of layers for each IPU."
        )
    left = num_layers - sum(count for count in counts if count != _WILDCARD)
    open_ipus = [ipu for ipu, count in enumerate(counts) if count == _WILDCARD]
    if left < 0 or (left and not open_ipus):
        raise IncompatibleIPUConfigError(
            "layers_per_ipu does not define the correct number of layers for the current model: "
            f"{list(layers_per_ipu)} places {num_layers - left} layers, and the model has {num_layers}; make the "
            "numbers add up, or use -1 for the remaining layers."
        )
    for ipu in open_ipus:
        counts[ipu] = left // len(open_ipus)
    if open_ipus:
        counts[open_ipus[-1]] += left % len(open_ipus)
    return counts


def split_encoder_decoder_ipu_config(
    ipu_config: IPUConfig, num_encoder_layers: int, num_decoder_layers: int
) -> tuple[IPUConfig, IPUConfig]:
    """Return the configurations of the encoder and of the decoder of a model, as separate programs.

    The encoder gets the first IPUs, a power of two that together have all of its layers, and the decoder the others.
    Only the attributes of the configuration's mode, training or inference, are split.

    Raises:
        IncompatibleIPUConfigError: If no IPU begins with the first layer of the decoder, or pieces of the embedding
            are on IPUs of the decoder, or pieces of the projection on IPUs of the encoder.
    """
    num_ipus = ipu_config._ipus_per_replica
    if num_ipus < 2:
        raise IncompatibleIPUConfigError(
            "Need ipus_per_replica to be at least 2 to split ipu_config into encoder and decoder configs; it is "
            f"{num_ipus}."
        )
    counts = _layer_counts(ipu_config._layers_per_ipu, num_ipus, num_encoder_layers + num_decoder_layers)
    cuts = [cut for cut in range(1, num_ipus) if sum(counts[:cut]) == num_encoder_layers and cut.bit_count() == 1]
    if not cuts:
        raise IncompatibleIPUConfigError(
            f"Unable to find a valid split of ipu_config.layers_per_ipu: {counts} places no {num_encoder_layers} "
            f"encoder layers on a power of two of IPUs and {num_decoder_layers} decoder layers on the others; encoder "
            "and decoder cannot share an IPU."
        )
    cut = cuts[-1]
    return _part_of(ipu_config, counts, slice(0, cut), "embedding"), _part_of(
        ipu_config, counts, slice(cut, num_ipus), "projection"
    )


def _part_of(config: IPUConfig, counts: Sequence[int], ipus: slice, serialized: str) -> IPUConfig:
    """Return the configuration of some IPUs, which alone may have pieces of ``serialized``."""
    changes: dict[str, Any] = {"layers_per_ipu": counts[ipus], "ipus_per_replica": len(counts[ipus])}
    if isinstance(config._matmul_proportion, list):
        changes["matmul_proportion"] = config._matmul_proportion[ipus]
    for kind in ("embedding", "projection"):
        name = f"serialized_{kind}_splits_per_ipu"
        splits = getattr(config, f"_{name}")
        if splits is None:
            continue
        inside = splits[ipus]
        if kind != serialized:
            changes |= {name: None, f"{kind}_serialization_factor": 1}
        elif sum(inside) == sum(splits):
            changes[name] = inside
        else:
            home = "encoder" if kind == "embedding" else "decoder"
            raise IncompatibleIPUConfigError(
                f"`{name}` must have all splits placed on the {home}, which has {inside} of {splits}; set the "
                "others to 0."
            )
    part = copy.deepcopy(config)
    part.update(**{config._resolve_name(f"_{name}"): value for name, value in changes.items()})
    return part
