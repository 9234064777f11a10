"""Model and tokenizer of a run: from a folder or a hub name, or new ones made for the training texts."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, BertConfig

from portico.errors import InputError
from portico.mrc.models.loading import PLAIN_HEAD, check_head, load_model
from portico.mrc.models.small_bert import build_small_bert, small_bert_config
from portico.mrc.models.tokenizer import train_wordpiece_tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reader:
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


def load_reader(name_or_path: str, head: str | None = None) -> Reader:
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
    return Reader(model, tokenizer)


def load_trained_reader(name_or_path: str) -> Reader:
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


def new_reader(
    texts: Iterable[str],
    *,
    vocab_size: int,
    max_length: int,
    model: Mapping[str, Any],
    head: str = PLAIN_HEAD,
) -> Reader:
    """Make a small BERT with random weights and a tokenizer trained on ``texts``.

    Args:
        texts: Training texts.
        vocab_size: Pieces of the tokenizer, at most.
        max_length: Longest input in tokens, unless ``model`` says otherwise.
        model: Fields of ``BertConfig`` that differ from the small BERT's.
        head: See :func:`~portico.mrc.models.loading.new_model`.

    Raises:
        InputError: If the texts need more pieces, or no BERT can have these fields.
    """
    check_head(head)
    tokenizer = train_wordpiece_tokenizer(texts, vocab_size=vocab_size)
    if len(tokenizer) > vocab_size:
        raise InputError(
            f"`preprocess.vocab_size={vocab_size}` is too small: special tokens and the single characters of the "
            f"training texts alone take {len(tokenizer)} pieces; set it to more than that."
        )
    fields = {"max_position_embeddings": max_length, **model}
    tokenizer.model_max_length = fields["max_position_embeddings"]
    try:
        return Reader(build_small_bert(small_bert_config(tokenizer, **fields), head), tokenizer)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise InputError(
            f"No BERT can be made with {_listed(model)} ({' '.join(str(error).split())}); set them otherwise, or "
            "leave them out for the small BERT's own."
        ) from error


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"`model.{name}={value}`" for name, value in fields.items()) or "the default fields"


def bert_fields() -> list[str]:
    """Return the names that can be set for a small BERT."""
    return sorted(key for key in BertConfig().to_dict() if not key.startswith("_"))
