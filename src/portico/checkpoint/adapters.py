"""Adapters of the PEFT library: what is written is small, and it is read back beside the base model."""

import logging
from pathlib import Path
from typing import Any

from transformers.trainer_utils import unwrap_peft_model
from transformers.utils.peft_utils import ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME

from portico.errors import InputError

logger = logging.getLogger(__name__)


def has_adapters(model: Any) -> bool:
    """Tell whether ``model`` is a base model inside PEFT's adapters."""
    return unwrap_peft_model(model) is not model


def load_adapters(model: Any, folder: str) -> None:
    """Load the adapters that ``folder`` holds into ``model``, and go on training the one that is active.

    PEFT writes the adapter named ``"default"`` into the folder itself, and others into folders of their names.

    Raises:
        InputError: If ``folder`` holds no adapter.
    """
    active = model.active_adapters[0]
    if len(model.active_adapters) > 1:
        logger.warning("Several adapters are active, %s; training goes on with %s.", model.active_adapters, active)
    named = {entry.name: entry for entry in Path(folder).iterdir() if _holds_adapter(entry)}
    if not named and _holds_adapter(Path(folder)):
        model.load_adapter(folder, active, is_trainable=True)
        return
    if _holds_adapter(Path(folder)):
        named["default"] = Path(folder)
    if not named:
        raise InputError(
            f"{folder} holds no adapter ({ADAPTER_SAFE_WEIGHTS_NAME} or {ADAPTER_WEIGHTS_NAME}), but the model has "
            "adapters of PEFT; set `resume_from_checkpoint` to a checkpoint of such a model, or leave it out."
        )
    for name, path in named.items():
        model.load_adapter(str(path), name, is_trainable=name == active)
    model.set_adapter(active)


def _holds_adapter(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME))
