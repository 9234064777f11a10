"""Model and tokenizer of a run that generates: from a folder or a hub name, or a new small T5."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from tokenizers import decoders, processors
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast, T5Config

from portico.errors import InputError
from portico.mrc.models.fusion_in_decoder import FiDModelForDownstreamTasks
from portico.mrc.models.tokenizer import train_wordpiece_tokenizer

SMALL_T5 = {
    "d_model": 128,
    "d_kv": 32,
    "d_ff": 256,
    "num_layers": 3,
    "num_heads": 4,
    # Every name is seen only a few times, so there is little to overfit and dropout only slows the learning down.
    "dropout_rate": 0.0,
}
PROMPT_WORDS = "question: context: passage:"


@dataclass(frozen=True)
class Generator:
    """An encoder-decoder with its tokenizer.

    Args:
        model: Generates tokens.
        tokenizer: Fast tokenizer.
    """

    model: Any
    tokenizer: Any


def t5_fields() -> list[str]:
    """Return the names that can be set for a small T5."""
    return sorted(key for key in T5Config().to_dict() if not key.startswith("_"))


def load_generator(name_or_path: str, *, fusion_in_decoder: bool) -> Generator:
    """Load a pretrained encoder-decoder.

    Args:
        name_or_path: Folder or name on the hub.
        fusion_in_decoder: Let it read several passages.

    Raises:
        InputError: If there is no encoder-decoder with its tokenizer.
    """
    model_class: Any = FiDModelForDownstreamTasks if fusion_in_decoder else AutoModelForSeq2SeqLM
    try:
        return Generator(model_class.from_pretrained(name_or_path), AutoTokenizer.from_pretrained(name_or_path))
    except (OSError, ValueError) as error:
        raise InputError(
            f"`model.name_or_path={name_or_path}` gives no encoder-decoder with its tokenizer "
            f"({' '.join(str(error).split())[:300]}); set it to a folder written by `save_pretrained`, to a hub name "
            "such as google-t5/t5-small, or to null for a small T5 trained from scratch."
        ) from error


def new_generator(
    texts: Iterable[str], *, vocab_size: int, model: Mapping[str, Any], fusion_in_decoder: bool
) -> Generator:
    """Make a small T5 with random weights and a tokenizer trained on ``texts``.

    Args:
        texts: Training texts.
        vocab_size: Pieces of the tokenizer, at most.
        model: Fields of ``T5Config`` that differ from the small T5's.
        fusion_in_decoder: Let it read several passages.

    Raises:
        InputError: If no T5 can have these fields.
    """
    tokenizer = _new_tokenizer(texts, vocab_size)
    marks = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }
    try:
        config = T5Config(**{**marks, **SMALL_T5, **model})
        model_class: Any = FiDModelForDownstreamTasks if fusion_in_decoder else AutoModelForSeq2SeqLM
        return Generator(model_class.from_config(config), tokenizer)
    except (StrictDataclassError, TypeError, ValueError) as error:
        listed = ", ".join(f"`model.{name}={value}`" for name, value in model.items()) or "the default fields"
        raise InputError(
            f"No T5 can be made with {listed} ({' '.join(str(error).split())}); set them otherwise, or leave them out "
            "for the small T5's own."
        ) from error


def _new_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer that keeps case, ends each text as a T5 expects it, and joins pieces to words again."""
    backend = train_wordpiece_tokenizer(
        [*texts, PROMPT_WORDS], vocab_size=vocab_size, lowercase=False
    ).backend_tokenizer
    end = ("[SEP]", backend.token_to_id("[SEP]"))
    backend.post_processor = processors.TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    backend.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]")
