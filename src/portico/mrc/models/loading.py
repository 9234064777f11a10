"""Question answering models by the name of their head: loaded with their tokenizer, or new."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    FlaubertForQuestionAnswering,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    XLMForQuestionAnswering,
    XLNetForQuestionAnswering,
)

from portico.errors import InputError, printable
from portico.hub import loading_model
from portico.mrc.features.tokenization import choose_fill_token
from portico.mrc.models.heads import BEAM_SEARCH_HEAD, EXTRACTIVE_HEAD, EXTRACTIVE_WITH_CONFIDENCE_HEAD
from portico.mrc.models.task_model import ModelForDownstreamTasks, TaskHeads
from portico.mrc.postprocess.ranking import SupportedSpanScorers

_SETTING = "model.name_or_path"
PLAIN_HEAD = "span"
HEADS: Mapping[str, TaskHeads] = {
    "extractive": EXTRACTIVE_HEAD,
    "extractive_with_confidence": EXTRACTIVE_WITH_CONFIDENCE_HEAD,
    "beam_search": BEAM_SEARCH_HEAD,
}
"""Task heads by the value of ``model.head``; transformers' own question answering head is ``"span"``."""

# Families for which transformers has a model with beam search.
_BEAM_SEARCH_MODELS: Mapping[str, Any] = {
    "flaubert": FlaubertForQuestionAnswering,
    "xlm": XLMForQuestionAnswering,
    "xlnet": XLNetForQuestionAnswering,
}
# What the length of the longest input is called; encoder-decoders limit both of their inputs.
_LENGTHS = ("max_position_embeddings", "max_encoder_position_embeddings", "max_seq_len")
# Families whose inputs are more than text.
_NOT_OF_TEXT = {"lxmert": "images", "layoutlmv2": "images of pages"}


@dataclass(frozen=True)
class ModelAndTokenizer:
    """A question answering model or encoder-decoder with its fast tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def max_length(self) -> int:
        """Longest input in tokens."""
        config, longest = self.model.config, int(self.tokenizer.model_max_length)
        positions = next((getattr(config, name) for name in _LENGTHS if getattr(config, name, None) is not None), None)
        # A saved limit of 0 is damage; XLNet's of -1 says that there is none.
        if positions is None or positions == -1:
            return longest
        # RoBERTa-like models keep their first positions for padding.
        tables = (module for name, module in self.model.named_modules() if name.endswith("position_embeddings"))
        padding = next((getattr(table, "padding_idx", None) for table in tables), None)
        return min(int(positions) - (0 if padding is None else padding + 1), longest)


def check_head(head: str | None) -> None:
    """Raise an ``InputError`` that lists the heads if ``head`` is unknown."""
    names = [PLAIN_HEAD, *HEADS]
    if head is not None and head not in names:
        raise InputError(f"`model.head={head}` is unknown; set it to one of: {', '.join(names)}.")


def load_reader(name_or_path: str, head: str | None = None, *, setting: str = _SETTING) -> ModelAndTokenizer:
    """Load a pretrained encoder with a question answering head, which is new if the model has none.

    For ``head`` see :func:`question_answering_model`. If the model or the tokenizer cannot be used, an ``InputError``
    explains why; ``setting`` is the name of the user's setting in that message.
    """
    given = f"`{setting}={name_or_path}`"
    check_head(head)
    with loading_model(
        setting,
        name_or_path,
        "a question answering model with its tokenizer",
        "set it to a folder written by `save_pretrained`, or to a hub name such as bert-base-uncased.",
    ):
        config = AutoConfig.from_pretrained(name_or_path)
        if config.model_type in _NOT_OF_TEXT:
            raise InputError(
                f"{given} holds a model of {config.model_type}, which needs {_NOT_OF_TEXT[config.model_type]}, but "
                "questions and contexts are texts; choose another model."
            )
        tokenizer = AutoTokenizer.from_pretrained(name_or_path)
        if tokenizer.pad_token is None:
            # Language models need no padding; attention masks hide it.
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(choose_fill_token(tokenizer))
        if head is not None and head != get_saved_head(config) and not _is_class_token_first(tokenizer):
            # Of a new head; one that was trained reads the token that it was trained on.
            config.class_token_id = -1 if tokenizer.cls_token_id is None else tokenizer.cls_token_id
        reader = ModelAndTokenizer(question_answering_model(config, head, name_or_path), tokenizer)
        if reader.max_length < 1:
            raise InputError(f"{given} takes inputs of {reader.max_length} tokens; restore its configuration.")
        _check_tokenizer(given, tokenizer, reader.model)
    return reader


def _is_class_token_first(tokenizer: PreTrainedTokenizerBase) -> bool:
    ids = tokenizer("a", "b")["input_ids"]
    return tokenizer.padding_side == "right" and bool(ids) and ids[0] == tokenizer.cls_token_id


def row_length_in_training(model: PreTrainedModel) -> int | None:
    """Return the one length of rows that a model can be trained on, ``None`` for any up to its limit.

    Reformer multiplies two tables of positions, which in training cover whole rows.
    """
    config: Any = getattr(model, "config", None)  # a module of the user may have none
    return math.prod(config.axial_pos_shape) if getattr(config, "axial_pos_embds", False) else None


def load_trained_reader(name_or_path: str, *, setting: str = _SETTING) -> ModelAndTokenizer:
    """Load a model as :func:`load_reader` does, but raise an ``InputError`` if its head would be new."""
    reader = load_reader(name_or_path, setting=setting)
    saved = AutoConfig.from_pretrained(name_or_path).architectures or ()
    how = "with `mode=train`" if setting == _SETTING else "with MRCTrainer"
    if saved and not any("QuestionAnswering" in name or "DownstreamTasks" in name for name in saved):
        raise InputError(
            f"`{setting}={name_or_path}` holds {printable(', '.join(saved))}, which has no question answering "
            f"head yet, so its answers would be random; train it first, {how}."
        )
    return reader


def _check_tokenizer(given: str, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    num_pieces = len(tokenizer)
    try:
        num_rows = len(cast(nn.Embedding, model.get_input_embeddings()).weight)
    except (NotImplementedError, AttributeError):  # a model of characters has no table of pieces
        return
    # Without its files, transformers makes a tokenizer that has only special tokens.
    if num_pieces <= len(tokenizer.all_special_ids):
        raise InputError(f"{given} holds a model but no tokenizer; add one with `tokenizer.save_pretrained`.")
    if num_pieces > num_rows:
        raise InputError(
            f"{given} holds a tokenizer of {num_pieces} pieces, but its model has "
            f"embeddings for {num_rows}; replace it by the tokenizer that the model was trained with."
        )


def question_answering_model(config: PreTrainedConfig, head: str | None, name_or_path: str | None = None) -> Any:
    """Load a question answering model, or without ``name_or_path`` make one with random weights.

    ``head`` is a key of ``HEADS`` or ``"span"``, by default the saved head; one that was not saved is new.
    """
    head = get_saved_head(config) if head is None else head
    model_class: Any = ModelForDownstreamTasks
    if head == PLAIN_HEAD:
        model_class = AutoModelForQuestionAnswering
    elif head == "beam_search" and not getattr(config, "task_heads", None):
        model_class = _BEAM_SEARCH_MODELS.get(config.model_type, ModelForDownstreamTasks)
    options: dict[str, Any] = {}
    if model_class is ModelForDownstreamTasks:
        options["task_heads"] = HEADS.get(head)
        config.num_labels = 2  # as transformers' own heads set it: a token is a start or an end
    if name_or_path is not None:
        model = model_class.from_pretrained(name_or_path, config=config, **options)
    elif model_class in _BEAM_SEARCH_MODELS.values():
        model = model_class(config)
    else:
        model = model_class.from_config(config, **options)
    if isinstance(model, ModelForDownstreamTasks) and getattr(model.config, "task_head", None) is None:
        model.set_task_head(next(iter(model.task_heads)))
    return model


def gives_loss_alone(model: nn.Module) -> bool:
    """Return whether a model that is given labels returns nothing but the loss, even in evaluation mode."""
    return isinstance(model, tuple(_BEAM_SEARCH_MODELS.values()))


def head_of(model: nn.Module) -> str:
    """Return the name of a model's head; a model without a configuration is taken to give start and end logits."""
    if gives_loss_alone(model):
        return "beam_search"
    config = getattr(model, "config", None)
    return PLAIN_HEAD if config is None else get_saved_head(config)


def get_saved_head(config: PreTrainedConfig) -> str:
    """Return the name of the saved head: ``"span"`` if none is recorded, ``"saved"`` for heads of unknown classes."""
    recorded = getattr(config, "task_heads", None)
    if recorded:
        classes = {key: {name: head.__name__ for name, head in heads.items()} for key, heads in HEADS.items()}
        return next((key for key, names in classes.items() if recorded == names), "saved")
    architectures = config.architectures or ()
    # PrimeQA's checkpoints do not record heads; the weights of its models have the names of our extractive head.
    if any(name.endswith(ModelForDownstreamTasks.__name__) for name in architectures):
        return "extractive"
    beams = {model_class.__name__ for model_class in _BEAM_SEARCH_MODELS.values()}
    return "beam_search" if beams.intersection(architectures) else PLAIN_HEAD


def head_post_processing(head: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options of ``SpanPostProcessing`` for the outputs of a head.

    An ``InputError`` is raised if the head does not return what the chosen mode reads.
    """
    mode = options.get("mode", "portico")
    gives_beams, reads_beams = head == "beam_search", mode == "beam_search"
    if head in (PLAIN_HEAD, *HEADS) and mode != "portico" and gives_beams != reads_beams:
        raise InputError(
            f"`postprocess.mode={mode}` reads {'beams' if reads_beams else 'logits'}, which the model's head, {head}, "
            f"does not give; set the mode to {'beam_search' if gives_beams else 'portico'}, or choose another "
            "`model.head`."
        )
    scorer = options.get("scorer_type", SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF)
    if mode == "primeqa" and head == PLAIN_HEAD and scorer != SupportedSpanScorers.SCORE_DIFF_BASED:
        raise InputError(
            f"`postprocess.mode=primeqa` ranks spans by {scorer}, which uses the answer type, but the model's head, "
            f"{head}, does not classify it; set `model.head=extractive`, or `postprocess.scorer_type="
            f"{SupportedSpanScorers.SCORE_DIFF_BASED}`."
        )
    # Beams are not logits: the default mode cannot read them.
    return {**options, "mode": "beam_search"} if gives_beams else options
