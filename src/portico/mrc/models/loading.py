"""Readers by the name of their head: loaded, or new."""

from collections.abc import Mapping
from typing import Any

from transformers import (
    AutoModelForQuestionAnswering,
    FlaubertForQuestionAnswering,
    PreTrainedConfig,
    XLMForQuestionAnswering,
    XLNetForQuestionAnswering,
)

from portico.errors import InputError
from portico.mrc.models.heads import BEAM_SEARCH_HEAD, EXTRACTIVE_HEAD, EXTRACTIVE_WITH_CONFIDENCE_HEAD
from portico.mrc.models.task_model import ModelForDownstreamTasks, TaskHeads

PLAIN_HEAD = "span"
HEADS: Mapping[str, TaskHeads] = {
    "extractive": EXTRACTIVE_HEAD,
    "extractive_with_confidence": EXTRACTIVE_WITH_CONFIDENCE_HEAD,
    "beam_search": BEAM_SEARCH_HEAD,
}
"""Heads by the name that a configuration gives them; the question answering head of transformers is ``"span"``."""

# Families in which transformers itself searches by beams.
_BEAM_SEARCH_MODELS: Mapping[str, Any] = {
    "flaubert": FlaubertForQuestionAnswering,
    "xlm": XLMForQuestionAnswering,
    "xlnet": XLNetForQuestionAnswering,
}


def check_head(head: str | None) -> None:
    """Refuse a head that there is not.

    Raises:
        InputError: Lists those there are.
    """
    names = [PLAIN_HEAD, *HEADS]
    if head is not None and head not in names:
        raise InputError(f"`model.head={head}` is unknown; set it to one of: {', '.join(names)}.")


def load_model(name_or_path: str, config: PreTrainedConfig, head: str | None = None) -> Any:
    """Load a reader, with a new head where it was saved without the one that is asked for.

    Args:
        name_or_path: Folder or name of its weights.
        config: Its configuration.
        head: A name of ``HEADS`` or ``"span"``; by default the head it was saved with, else ``"span"``.
    """
    head = saved_head(config) if head is None else head
    if head == PLAIN_HEAD:
        return AutoModelForQuestionAnswering.from_pretrained(name_or_path, config=config)
    if _searches_by_itself(config, head):
        return _BEAM_SEARCH_MODELS[config.model_type].from_pretrained(name_or_path, config=config)
    task_heads = HEADS.get(head)
    return _with_head_in_use(ModelForDownstreamTasks.from_config(config, name_or_path, task_heads=task_heads))


def new_model(config: PreTrainedConfig, head: str) -> Any:
    """Make a reader with random weights.

    Args:
        config: Its configuration.
        head: A name of ``HEADS`` or ``"span"``.
    """
    if head == PLAIN_HEAD:
        return AutoModelForQuestionAnswering.from_config(config)
    if _searches_by_itself(config, head):
        return _BEAM_SEARCH_MODELS[config.model_type](config)
    return _with_head_in_use(ModelForDownstreamTasks.from_config(config, task_heads=HEADS[head]))


def gives_loss_alone(model: Any) -> bool:
    """Return whether a reader that is given labels returns nothing but the loss, also in an evaluation."""
    return isinstance(model, tuple(_BEAM_SEARCH_MODELS.values()))


def head_of(model: Any) -> str:
    """Return the name of the head of a reader."""
    return "beam_search" if gives_loss_alone(model) else saved_head(model.config)


def saved_head(config: PreTrainedConfig) -> str:
    """Return the name of the head that a model was saved with, ``"span"`` where nothing says so.

    A model saved with heads of other classes than ours keeps them; their name is ``"saved"``.
    """
    recorded = getattr(config, "task_heads", None)
    if recorded:
        return next((name for name, heads in HEADS.items() if recorded == _class_names(heads)), "saved")
    saved_as = config.architectures or ()
    # PrimeQA's own checkpoints name no heads; those of its readers have weights of the same names as ours.
    if any(name.endswith(ModelForDownstreamTasks.__name__) for name in saved_as):
        return "extractive"
    beams = {model_class.__name__ for model_class in _BEAM_SEARCH_MODELS.values()}
    return "beam_search" if beams.intersection(saved_as) else PLAIN_HEAD


def _class_names(heads: TaskHeads) -> dict[str, str]:
    return {name: head_class.__name__ for name, head_class in heads.items()}


def _searches_by_itself(config: PreTrainedConfig, head: str) -> bool:
    return (
        head == "beam_search" and config.model_type in _BEAM_SEARCH_MODELS and not getattr(config, "task_heads", None)
    )


def _with_head_in_use(model: ModelForDownstreamTasks) -> ModelForDownstreamTasks:
    if getattr(model.config, "task_head", None) is None:
        model.set_task_head(next(iter(model.task_heads)))
    return model
