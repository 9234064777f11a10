"""Readers by the name of their head: loaded, or new."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    FlaubertForQuestionAnswering,
    PreTrainedConfig,
    XLMForQuestionAnswering,
    XLNetForQuestionAnswering,
)

from portico.errors import InputError
from portico.mrc.answers.scorers import SupportedSpanScorers
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
    """Tell whether a reader that is given labels returns nothing but the loss, also in an evaluation."""
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


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelAndTokenizer:
    """A question answering model with its tokenizer.

    Args:
        model: Gives start and end logits.
        tokenizer: Fast tokenizer.
    """

    model: Any
    tokenizer: Any

    @property
    def max_length(self) -> int:
        """Longest input in tokens."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or self.tokenizer.model_max_length
        # RoBERTa-like models keep their first positions for padding.
        reserved = self.model.config.pad_token_id + 1 if self.model.config.model_type in _OFFSET_POSITIONS else 0
        return int(min(positions - reserved, self.tokenizer.model_max_length))


_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")


def load_reader(name_or_path: str, head: str | None = None) -> ModelAndTokenizer:
    """Load a pretrained encoder with a question answering head, which is new where the model has none.

    Args:
        name_or_path: Folder or name on the hub.
        head: See :func:`~portico.mrc.models.loading.load_model`.

    Raises:
        InputError: If there is no such model, it has no question answering head, or no tokenizer that fits it.
    """
    check_head(head)
    _check_folder(name_or_path)
    try:
        config = AutoConfig.from_pretrained(name_or_path)
        tokenizer = AutoTokenizer.from_pretrained(name_or_path)
        model = load_model(name_or_path, config, head)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"`model.name_or_path={name_or_path}` gives no model that answers questions, with its tokenizer "
            f"({' '.join(str(error).split())[:300]}); set it to a folder written by `save_pretrained`, to a hub name "
            "such as bert-base-uncased, or to null for a small BERT trained from scratch."
        ) from error
    _check_tokenizer(name_or_path, tokenizer, model)
    return ModelAndTokenizer(model, tokenizer)


def load_trained_reader(name_or_path: str) -> ModelAndTokenizer:
    """Load a reader that can answer: a model whose question answering head was saved with it.

    Args:
        name_or_path: Folder or name on the hub.

    Raises:
        InputError: As :func:`load_reader` does, or if the head would be new and its answers chance.
    """
    reader = load_reader(name_or_path)
    saved = AutoConfig.from_pretrained(name_or_path).architectures or ()
    if saved and not any("QuestionAnswering" in name or "DownstreamTasks" in name for name in saved):
        raise InputError(
            f"`{name_or_path}` holds {', '.join(saved)}, which has no question answering head yet: its answers would "
            "be chance; train it first, as `model.name_or_path` of a run or by MRCTrainer."
        )
    return reader


def _check_folder(name_or_path: str) -> None:
    # The hub's names have one slash at most and begin with a letter, so that this can only be a path.
    is_path = name_or_path.startswith(("/", ".", "~")) or name_or_path.count("/") > 1
    if is_path and not Path(name_or_path).is_dir():
        raise InputError(
            f"`model.name_or_path={name_or_path}` gives no model: there is no such folder; set it to a folder written "
            "by `save_pretrained`, such as that of a run, or to a name on the hub."
        )


def _check_tokenizer(name_or_path: str, tokenizer: Any, model: Any) -> None:
    num_pieces, num_rows = len(tokenizer), model.get_input_embeddings().num_embeddings
    # Without its files, transformers makes a tokenizer that knows no text.
    if num_pieces <= len(tokenizer.all_special_ids):
        raise InputError(
            f"`model.name_or_path={name_or_path}` holds a model but no tokenizer, without which no word is known; "
            "write it there with `tokenizer.save_pretrained`."
        )
    if num_pieces > num_rows:
        raise InputError(
            f"`model.name_or_path={name_or_path}` holds a tokenizer of {num_pieces} pieces, but its model has "
            f"embeddings for {num_rows}; put the tokenizer there that the model was trained with."
        )


def head_post_processing(head: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of the post-processing of a head's outputs.

    Args:
        head: Its name, see :data:`~portico.mrc.models.loading.HEADS`.
        options: Options of :class:`~portico.mrc.post_processing.span_post_processing.SpanPostProcessing`.

    Raises:
        InputError: If the head does not give what the mode reads.
    """
    mode = options.get("mode", "portico")
    gives_beams, reads_beams = head == "beam_search", mode == "beam_search"
    if head in (PLAIN_HEAD, *HEADS) and mode != "portico" and gives_beams != reads_beams:
        raise InputError(
            f"`postprocess.mode={mode}` reads {'beams' if reads_beams else 'logits'}, which the model's head, {head}, "
            f"does not give; set the mode to {'beam_search' if gives_beams else 'portico'}, or take another "
            "`model.head`."
        )
    scorer = options.get("scorer_type", SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF)
    if mode == "primeqa" and head == PLAIN_HEAD and scorer != SupportedSpanScorers.SCORE_DIFF_BASED:
        raise InputError(
            f"`postprocess.mode=primeqa` ranks spans by {scorer}, which weighs the kind of answer, but the model's "
            f"head, {head}, does not classify it; set `model.head=extractive`, or `postprocess.scorer_type="
            f"{SupportedSpanScorers.SCORE_DIFF_BASED}`."
        )
    # Beams are no logits: where no other rules were chosen, they are read by those of their own.
    return {**options, "mode": "beam_search"} if gives_beams else options
