"""Small models trained from scratch: tokenizers trained on given texts, and errors that name the wrong setting."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from portico.errors import InputError
from portico.experiments.settings import NO_DEFAULT

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_wordpiece_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 1600, lowercase: bool = True
) -> BertTokenizer:
    """Train a BERT tokenizer; the same texts give the same pieces in every process.

    Every character of the texts becomes a piece, so unseen names are split into known pieces, and in the same way in
    a question and in its passage. ``vocab_size`` includes special tokens and single characters. With ``lowercase``
    case is folded and accents are stripped, as in uncased BERT.
    """
    distinct_texts = list(dict.fromkeys(texts))
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The trainer numbers the pieces of one inner character in the order of a hash map, and breaks ties between merges
    # by number. As special tokens they get fixed numbers; only the vocabulary is kept, so they do not stay special.
    characters = set(normalizer.normalize_str("".join(sorted(set().union(*distinct_texts)))))
    inner_characters = [f"##{character}" for character in sorted(characters) if character.isalnum()]
    special_tokens = [*SPECIAL_TOKENS, *inner_characters]
    # The trainer reserves memory for all pieces; texts have fewer than characters, of which NFD makes four at most.
    most = len(special_tokens) + 4 * sum(map(len, distinct_texts))
    trainer = trainers.WordPieceTrainer(
        vocab_size=min(vocab_size, most), special_tokens=special_tokens, show_progress=False
    )
    tokenizer.train_from_iterator(distinct_texts, trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=lowercase)


def train_generator_tokenizer(
    texts: Iterable[str], *, vocab_size: int, ends_sequences: bool = True
) -> PreTrainedTokenizerFast:
    """Train a tokenizer for generative models: it keeps case, and decoding joins the pieces of a word.

    With ``ends_sequences`` each sequence ends with a separator, as T5 expects; otherwise nothing is added (GPT-2).
    """
    backend = train_wordpiece_tokenizer(texts, vocab_size=vocab_size, lowercase=False).backend_tokenizer
    end = ("[SEP]", backend.token_to_id("[SEP]"))
    template = f"$A {end[0]}" if ends_sequences else "$A"
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=[end])
    backend.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]")


# Fields that follow from the tokenizer and the labels.
_OF_THE_DATA = (
    "vocab_size",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "id2label",
    "label2id",
    "architectures",
)


GENERATOR_TOKENS = {
    "pad_token_id": "pad_token_id",
    "eos_token_id": "eos_token_id",
    "decoder_start_token_id": "pad_token_id",
}
"""The :attr:`SmallModel.special_tokens` of an encoder-decoder."""


@dataclass(frozen=True)
class SmallModel:
    """An architecture of which small models are trained from scratch."""

    kind: str
    """What errors call it."""
    config_class: type[PreTrainedConfig]
    fields: Mapping[str, Any]
    """Fields of the configuration that differ from the defaults of ``config_class``."""
    special_tokens: Mapping[str, str] = field(default_factory=partial(dict, pad_token_id="pad_token_id"))
    """Fields that hold the id of a special token, each with the tokenizer's name of the token."""

    def settings(self, open_fields: Iterable[str] = ()) -> dict[str, Any]:
        """Return the fields of a new model in alphabetical order, with the values that they have by default.

        Fields that depend on the data, and the ``open_fields``, are ``NO_DEFAULT``.
        """
        fields = {**self.config_class().to_dict(), **self.fields}
        fields |= {name: NO_DEFAULT for name in (*_OF_THE_DATA, *open_fields) if name in fields}
        return {name: fields[name] for name in sorted(fields) if not name.startswith("_")}

    def configure(self, processor: object, overrides: Mapping[str, Any]) -> Any:
        """Return the configuration of a model with these fields, and with the vocabulary of its tokenizer, if any."""
        ids = {}
        if isinstance(processor, PreTrainedTokenizerBase):
            ids = {name: getattr(processor, token) for name, token in self.special_tokens.items()}
            ids["vocab_size"] = len(processor)
        return self.config_class(**{**ids, **self.fields, **overrides})


@contextmanager
def explained_fields(kind: str, fields: Mapping[str, Any]) -> Iterator[None]:
    """Turn an error in making a model with these fields into an ``InputError`` that names the fields."""
    try:
        yield
    except (StrictDataclassError, TypeError, ValueError, RuntimeError) as error:  # torch raises the last
        listed = ", ".join(f"`model.{name}={value}`" for name, value in fields.items()) or "the default fields"
        raise InputError(
            f"No {kind} can be made with {listed} ({' '.join(str(error).split())}); set them differently, or leave "
            f"them out for the defaults of the small {kind}."
        ) from error


def check_unshaped(config: Mapping[str, Any], name_or_path: str, kind: str) -> None:
    """Raise an ``InputError`` for fields that would shape a new model if a pretrained one is loaded."""
    shaping = [f"`model.{name}={value}`" for name, value in config.items() if value is not None]
    if shaping:
        raise InputError(
            f"{', '.join(shaping)} would shape a new small {kind}, but `model.name_or_path={name_or_path}` loads a "
            "model as it is; set one or the other, and null for the rest."
        )
