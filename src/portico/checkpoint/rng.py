"""The states of every random number generator, saved and brought back."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.trainer_pt_utils import safe_globals, set_rng_state_for_device

from portico.run_log import logger


def save_rng_state(folder: str, args: Any) -> None:
    """Write the states of Python's, numpy's and torch's generators of this process into ``folder``."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(present_rng_states(args), _rng_file(folder, args))


def present_rng_states(args: Any) -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's generators of this process."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = (
            torch.cuda.random.get_rng_state_all() if args.world_size > 1 else torch.cuda.random.get_rng_state()
        )
    return states


def load_rng_state(folder: str | None, args: Any) -> None:
    """Bring the generators of this process back to what ``folder`` holds; say so when it holds nothing."""
    if folder is None:
        return
    file = _rng_file(folder, args)
    if not file.is_file():
        logger.warning(
            "%s is missing, so random numbers go on from the present seed: the resumed run will differ from an "
            "uninterrupted one.",
            file,
        )
        return
    with safe_globals():
        states = torch.load(file, weights_only=True)
    set_rng_states(states, args)


def set_rng_states(states: dict[str, Any], args: Any) -> None:
    """Bring the generators of this process to ``states``."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        set_rng_state_for_device("CUDA", torch.cuda, states, args.world_size > 1)


def _rng_file(folder: str, args: Any) -> Path:
    name = "rng_state.pth" if args.world_size <= 1 else f"rng_state_{args.process_index}.pth"
    return Path(folder) / name
