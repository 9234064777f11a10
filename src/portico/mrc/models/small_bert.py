"""A start for a small BERT that has to learn reading from scratch within minutes.

A randomly started transformer spends most of a short training on discovering that a name in the question can be looked
up in the passage, and that an answer stands near that name. Here some attention heads start with those two abilities;
all weights remain trainable and the architecture is unchanged.

The hidden units are shared out: the first ones carry the position as sines and cosines, a few carry the segment, the
others carry the word. A head that compares positions finds a neighbour at a fixed distance; a head that compares
words finds other places of the same word piece, and its output tells whether one of them is in the question.

Source: sinusoidal positions, arXiv:1706.03762, section 3.5; equal query and key weights as a start, arXiv:2305.09828.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import BertConfig, BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.bert.modeling_bert import BertEmbeddings, BertSelfAttention

from portico.errors import InputError
from portico.mrc.models.loading import PLAIN_HEAD, ModelAndTokenizer, check_head, new_model

WAVELENGTH_EXPONENTS = (2.0, 7.5)
"""The position units have wavelengths from 4 to 181 tokens, given here as powers of two."""
WORD_MATCH_GAIN = 1.5
NEXT_TOKEN_GAIN = 3.0
REGION_GAIN = 1.0
SEGMENT_SCALE = 1.5
"""Size of the segment units, in standard deviations of a word unit."""


@dataclass(frozen=True)
class Neighbour:
    """A head that starts by looking ``distance`` tokens to the right (to the left if negative), ``gain`` sharply."""

    distance: int
    gain: float


@dataclass(frozen=True)
class SameWord:
    """A head that starts by looking for the same word piece elsewhere, ``gain`` sharply."""

    gain: float


Role = Neighbour | SameWord | None

FIRST_LAYER: tuple[Role, ...] = (
    Neighbour(-1, NEXT_TOKEN_GAIN),
    Neighbour(1, NEXT_TOKEN_GAIN),
    SameWord(WORD_MATCH_GAIN),
    SameWord(WORD_MATCH_GAIN),
)
LATER_LAYERS: tuple[Role, ...] = (Neighbour(-4, REGION_GAIN), Neighbour(4, REGION_GAIN), None, None)


@torch.no_grad()
def give_heads_roles(model: PreTrainedModel) -> None:
    """Start the heads of a freshly made model as this module describes.

    Args:
        model: A BERT under any head, changed in place; the global random state of torch is used.
    """
    config = model.config
    units = _Units.of(config.hidden_size, config.hidden_size // config.num_attention_heads)
    frequencies = 2 * math.pi / torch.logspace(*WAVELENGTH_EXPONENTS, units.position // 2, base=2)
    bert: Any = model.base_model
    _start_embeddings(bert.embeddings, units, frequencies, config.initializer_range)
    layers = [module for module in model.modules() if isinstance(module, BertSelfAttention)]
    for number, layer in enumerate(layers):
        _start_heads(layer, LATER_LAYERS if number else FIRST_LAYER, units, frequencies)


@dataclass(frozen=True)
class _Units:
    """Which hidden units carry what: first the position, then the segment, then the word."""

    position: int
    segment: int

    @classmethod
    def of(cls, hidden_size: int, head_size: int) -> "_Units":
        # Sines and cosines come in pairs, and a head must be able to hold all of them.
        return cls(position=min(head_size, hidden_size // 4) // 2 * 2, segment=hidden_size // 16)

    @property
    def position_slice(self) -> slice:
        return slice(0, self.position)

    @property
    def segment_slice(self) -> slice:
        return slice(self.position, self.position + self.segment)

    @property
    def word_slice(self) -> slice:
        return slice(self.position + self.segment, None)


def _start_embeddings(embeddings: BertEmbeddings, units: _Units, frequencies: Tensor, word_std: float) -> None:
    embeddings.word_embeddings.weight[:, : units.word_slice.start] = 0

    positions = embeddings.position_embeddings.weight.zero_()
    angles = torch.arange(len(positions))[:, None] * frequencies
    # A sine has a standard deviation of sqrt(1/2): scale it to that of a word unit.
    positions[:, units.position_slice] = math.sqrt(2) * word_std * torch.cat((angles.sin(), angles.cos()), dim=1)

    segments = embeddings.token_type_embeddings.weight.zero_()
    segments[0, units.segment_slice] = SEGMENT_SCALE * word_std
    segments[1, units.segment_slice] = -SEGMENT_SCALE * word_std


def _start_heads(attention: BertSelfAttention, roles: tuple[Role, ...], units: _Units, frequencies: Tensor) -> None:
    num_heads, head_size = attention.num_attention_heads, attention.attention_head_size
    for head in range(num_heads):
        rows = slice(head * head_size, (head + 1) * head_size)
        query, key = attention.query.weight[rows], attention.key.weight[rows]
        match roles[head * len(roles) // num_heads]:
            case Neighbour(distance, gain):
                _look_beside(query, key, distance * frequencies, gain, units)
            case SameWord(gain):
                _look_for_same_word(query, key, gain, units)


def _look_beside(query: Tensor, key: Tensor, turns: Tensor, gain: float, units: _Units) -> None:
    """Let a position score the one at a distance highest, by turning the sines of the key back over that distance."""
    cos, sin = turns.cos().diag(), turns.sin().diag()
    rotation = torch.cat((torch.cat((cos, -sin), dim=1), torch.cat((sin, cos), dim=1)))
    query.zero_()[: units.position, units.position_slice] = math.sqrt(gain) * torch.eye(units.position)
    key.zero_()[: units.position, units.position_slice] = math.sqrt(gain) * rotation


def _look_for_same_word(query: Tensor, key: Tensor, gain: float, units: _Units) -> None:
    """Let equal words score highest: query and key share one projection of the word units."""
    nn.init.orthogonal_(query.zero_()[:, units.word_slice], gain=math.sqrt(gain))
    key.copy_(query)


SMALL_BERT = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 192,
    "initializer_range": 0.05,
    # Every name is seen only a few times, so there is little to overfit and dropout only slows the learning down.
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def small_bert_config(tokenizer: PreTrainedTokenizerBase, **overrides: Any) -> BertConfig:
    """Return the configuration of a BERT that learns the embedded corpus on a CPU within minutes.

    Args:
        tokenizer: Gives the size of the vocabulary and the padding token.
        overrides: Fields of ``BertConfig`` to set differently.

    Raises:
        InputError: If ``BertConfig`` has no such field.
    """
    known = BertConfig().to_dict()
    for name in overrides:
        if name not in known:
            nearest = get_close_matches(name, known, cutoff=0)
            raise InputError(f"`{name}` is not a field of BertConfig; the nearest are {', '.join(nearest)}.")
    fields = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **SMALL_BERT, **overrides}
    return BertConfig(**fields)


def build_small_bert(config: BertConfig, head: str = PLAIN_HEAD) -> Any:
    """Build an untrained reader whose attention heads start with the roles of `portico.mrc.models.small_bert`.

    Args:
        config: Its shape, as from `small_bert_config`.
        head: What stands on it, see `portico.mrc.models.loading.new_model`.

    Returns:
        A model in training mode. Its weights come from the global random state of torch: seed it first.
    """
    model = new_model(config, head)
    give_heads_roles(model)
    return model


SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_wordpiece_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 1600, lowercase: bool = True
) -> BertTokenizer:
    """Train a BERT tokenizer; the same texts give the same pieces in every process.

    Every character of the texts becomes a piece of its own, so a name never seen is split into known pieces, and in
    the same way in a question and in its passage.

    Args:
        texts: Training texts only.
        vocab_size: Largest number of pieces; special tokens and single characters count.
        lowercase: Fold case and strip accents, as uncased BERT does.

    Returns:
        A fast tokenizer that ``AutoTokenizer`` loads after ``save_pretrained``.
    """
    distinct_texts = list(dict.fromkeys(texts))
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *_inner_characters(distinct_texts, normalizer)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(distinct_texts, trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=lowercase)


def _inner_characters(texts: list[str], normalizer: normalizers.Normalizer) -> list[str]:
    """Return the pieces of one character that continue a word.

    The trainer would number them in the order of a hash map, and ties between merges fall by number; announced
    beforehand they get fixed numbers. Only the vocabulary outlives the training, so they do not stay special.
    """
    characters = {character for text in texts for character in normalizer.normalize_str(text)}
    return [f"##{character}" for character in sorted(characters) if character.isalnum()]


def new_reader(
    texts: Iterable[str],
    *,
    vocab_size: int,
    max_length: int,
    model: Mapping[str, Any],
    head: str = PLAIN_HEAD,
) -> ModelAndTokenizer:
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
        return ModelAndTokenizer(build_small_bert(small_bert_config(tokenizer, **fields), head), tokenizer)
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
