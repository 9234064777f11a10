"""The states of the callbacks of every library, in a checkpoint."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import TrainerCallback

from portico.checkpoint.writer import exportable_callbacks

logger = logging.getLogger(__name__)


def callback_states(trainer: Any) -> dict[str, dict[str, Any]]:
    """Return the states of the callbacks of ``trainer`` by library, then by class."""
    return {
        "allennlp": {name: callback.state_dict() for name, callback in _of_allennlp(trainer).items()},
        "hugging_face": {name: callback.state()["attributes"] for name, callback in _of_hugging_face(trainer).items()},
        "lightning": {name: callback.state_dict() for name, callback in _of_lightning(trainer).items()},
    }


def restore_callbacks(trainer: Any, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the callbacks of AllenNLP and Hugging Face their states of ``states`` back."""
    for callback, state in _matched(_of_allennlp(trainer), states["allennlp"]):
        callback.load_state_dict(state)
    for callback, state in _matched(_of_hugging_face(trainer), states["hugging_face"]):
        vars(callback).update(state)


def restore_lightning_callbacks(trainer: Any, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the callbacks of Lightning their states back; they must have been set up, and know their folders."""
    for callback, state in _matched(_of_lightning(trainer), states["lightning"]):
        callback.load_state_dict(state)


def _of_allennlp(trainer: Any) -> dict[str, Any]:
    return _named(callback for callback in trainer.own_callbacks if hasattr(callback, "state_dict"))


def _of_hugging_face(trainer: Any) -> dict[str, Any]:
    return _named(callback for callback in exportable_callbacks(trainer.loop) if isinstance(callback, TrainerCallback))


def _of_lightning(trainer: Any) -> dict[str, Any]:
    return _named(trainer.loop._lightning_parts["callbacks"])


def _named(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return ``callbacks`` by the names of their classes, numbered where a class is there more than once."""
    named: dict[str, Any] = {}
    for callback in callbacks:
        name = type(callback).__qualname__
        same = sum(known.partition(" ")[0] == name for known in named)
        named[f"{name} {same + 1}" if same else name] = callback
    return named


def _matched(callbacks: Mapping[str, Any], states: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    left = [name for name in states if name not in callbacks]
    if left:
        logger.warning(
            "The checkpoint holds states of callbacks that this training does not have: %s.", ", ".join(left)
        )
    return [(callbacks[name], state) for name, state in states.items() if name in callbacks]
