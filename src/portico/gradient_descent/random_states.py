"""Random generators of a training, so that an epoch can be entered in its middle."""

from typing import Any

import torch

from portico.checkpoint.resume import present_rng_states, set_rng_states

_WHERE = ("", "sampler", "batch_sampler", "batch_sampler.sampler")


def present_states(data_loader: Any, args: Any) -> dict[str, Any]:
    """Return the states of the global generators and of those that ``data_loader`` has of its own."""
    return {
        "global": present_rng_states(args),
        "data_loader": [generator.get_state() for generator in _generators(data_loader)],
    }


def set_states(states: dict[str, Any], data_loader: Any, args: Any) -> None:
    """Bring all generators to ``states``."""
    set_rng_states(states["global"], args)
    for generator, state in zip(_generators(data_loader), states["data_loader"], strict=True):
        generator.set_state(state)


def _generators(data_loader: Any) -> list[torch.Generator]:
    """Return the distinct generators of a loader and its samplers, in a fixed order."""
    found: dict[int, torch.Generator] = {}
    for path in _WHERE:
        owner = data_loader
        for name in path.split(".") if path else ():
            owner = getattr(owner, name, None)
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            found.setdefault(id(generator), generator)
    return list(found.values())
