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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from portico.hf_compat import BertEmbeddings, BertSelfAttention

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
