"""A small BERT that learns reading comprehension from scratch within minutes, and its tokenizer.

A randomly initialised transformer spends most of a short training on discovering that a name in the question can be
looked up in the passage, and that an answer is close to that name. Here some attention heads start with these two
abilities; all weights remain trainable and the architecture is unchanged.

The hidden units are divided: the first ones hold the position as sines and cosines, a few hold the segment, the
others hold the word. A head that compares positions attends to the token at a fixed distance; a head that compares
words attends to other occurrences of the same word piece, and its output says whether one of them is in the question.

Source: sinusoidal positions, arXiv:1706.03762, section 3.5; equal query and key weights as initialisation,
arXiv:2305.09828.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedTokenizerBase

from portico.compat.transformers import BertEmbeddings, BertSelfAttention
from portico.errors import InputError
from portico.experiments.from_scratch import SmallModel, explained_fields, train_wordpiece_tokenizer
from portico.mrc.models.loading import PLAIN_HEAD, ModelAndTokenizer, check_head, question_answering_model

SMALL_BERT = SmallModel(
    "BERT",
    BertConfig,
    {
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        # The work is to look names up, which the attention does: a wider or smoother feed-forward part gains no F1.
        "intermediate_size": 64,
        "hidden_act": "relu",
        "max_position_embeddings": 192,
        "initializer_range": 0.05,
        # Every name occurs only a few times, so there is little to overfit and dropout only slows learning down.
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
)

# Wavelengths of the position units, as powers of two: from 4 to 181 tokens.
WAVELENGTH_EXPONENTS = (2.0, 7.5)
# Size of the segment units, in standard deviations of a word unit.
SEGMENT_SCALE = 1.5


class Role(NamedTuple):
    """What a new attention head attends to: the token ``distance`` to the right, or with ``None`` equal word pieces.

    A larger gain attends more sharply.
    """

    gain: float
    distance: int | None


FIRST_LAYER = (Role(3.0, distance=-1), Role(3.0, distance=1), Role(1.5, distance=None), Role(1.5, distance=None))
LATER_LAYERS = (Role(1.0, distance=-4), Role(1.0, distance=4), None, None)


def new_reader(
    texts: Iterable[str], *, vocab_size: int, max_length: int, model: Mapping[str, Any], head: str = PLAIN_HEAD
) -> ModelAndTokenizer:
    """Make a small BERT with random weights and a tokenizer of ``vocab_size`` pieces trained on ``texts``.

    ``model`` has the fields of ``BertConfig`` that differ from ``SMALL_BERT``. The longest input is ``max_length``
    tokens, unless it sets ``max_position_embeddings``. For ``head`` see
    :func:`~portico.mrc.models.loading.question_answering_model`.
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
    with explained_fields(SMALL_BERT.kind, model):
        return ModelAndTokenizer(build_small_bert(small_bert_config(tokenizer, **fields), head), tokenizer)


def small_bert_config(tokenizer: PreTrainedTokenizerBase, **overrides: Any) -> BertConfig:
    """Return ``SMALL_BERT`` with the tokenizer's vocabulary and with ``overrides``, fields of ``BertConfig``."""
    known = BertConfig().to_dict()
    for name in overrides:
        if name not in known:
            nearest = get_close_matches(name, known, cutoff=0)
            raise InputError(f"`{name}` is not a field of BertConfig; the nearest are {', '.join(nearest)}.")
    return SMALL_BERT.configure(tokenizer, overrides)


@torch.no_grad()
def build_small_bert(config: BertConfig, head: str = PLAIN_HEAD) -> Any:
    """Build a model with attention heads as this module describes, from torch's global random state."""
    model = question_answering_model(config, head)
    head_size = config.hidden_size // config.num_attention_heads
    # Sines and cosines come in pairs, and a head must be able to hold all of them.
    num_frequencies = min(head_size, config.hidden_size // 4) // 2
    frequencies = 2 * math.pi / torch.logspace(*WAVELENGTH_EXPONENTS, num_frequencies, base=2)
    words = slice(2 * num_frequencies + config.hidden_size // 16, None)
    _init_embeddings(model.base_model.embeddings, frequencies, words, config.initializer_range)
    layers = [module for module in model.modules() if isinstance(module, BertSelfAttention)]
    for number, layer in enumerate(layers):
        _init_heads(layer, LATER_LAYERS if number else FIRST_LAYER, frequencies, words)
    return model


def _init_embeddings(embeddings: BertEmbeddings, frequencies: Tensor, words: slice, word_std: float) -> None:
    embeddings.word_embeddings.weight[:, : words.start] = 0

    num_position = 2 * len(frequencies)
    positions = embeddings.position_embeddings.weight.zero_()
    angles = torch.arange(len(positions))[:, None] * frequencies
    # A sine has a standard deviation of sqrt(1/2): scale it to the standard deviation of a word unit.
    positions[:, :num_position] = math.sqrt(2) * word_std * torch.cat((angles.sin(), angles.cos()), dim=1)

    segments = embeddings.token_type_embeddings.weight.zero_()
    segments[0, num_position : words.start] = SEGMENT_SCALE * word_std
    segments[1, num_position : words.start] = -SEGMENT_SCALE * word_std


def _init_heads(attention: BertSelfAttention, roles: Sequence[Role | None], frequencies: Tensor, words: slice) -> None:
    num_position = 2 * len(frequencies)
    num_heads = attention.num_attention_heads
    head_size = attention.attention_head_size
    for head in range(num_heads):
        rows = slice(head * head_size, (head + 1) * head_size)
        query, key = attention.query.weight[rows], attention.key.weight[rows]
        match roles[head * len(roles) // num_heads]:
            case Role(gain, int(distance)):
                # Rotating the sines of the key back by the distance makes the token there score highest.
                cos, sin = (distance * frequencies).cos().diag(), (distance * frequencies).sin().diag()
                rotation = torch.cat((torch.cat((cos, -sin), dim=1), torch.cat((sin, cos), dim=1)))
                query.zero_()[:num_position, :num_position] = math.sqrt(gain) * torch.eye(num_position)
                key.zero_()[:num_position, :num_position] = math.sqrt(gain) * rotation
            case Role(gain, None):
                # With one projection of the word units for query and key, equal words score highest.
                nn.init.orthogonal_(query.zero_()[:, words], gain=math.sqrt(gain))
                key.copy_(query)
