"""A small text classification that needs no download: which topic is a sentence about?"""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from portico.experiments.settings import setting

_WORDS = {
    "music": "concert violin singer chorus melody piano rhythm album orchestra tune band guitar",
    "sport": "match goal coach runner stadium team score referee race champion league trophy",
    "travel": "airport hotel journey suitcase ticket island coast passport train luggage guide harbour",
    "cooking": "recipe oven butter flour kitchen pepper soup dough onion sauce spoon garlic",
}
TOPICS = tuple(_WORDS)
_FILLERS = "the a of in was with and then we they saw after before again very old new small our some"
VOCABULARY = (*(word for words in _WORDS.values() for word in words.split()), *_FILLERS.split())
VOCAB_SIZE = len(VOCABULARY) + 1  # 0 is padding
# Training and validation sentences are drawn from different seeds.
_VALIDATION_SEED_OFFSET = 1


@dataclass(frozen=True)
class Sentence:
    """A sentence and its topic, an index into ``TOPICS``."""

    words: tuple[str, ...]
    topic: int


@dataclass(kw_only=True)
class TopicData:
    """The group ``data``: sentences made at the start of the run, the same for the same seed."""

    num_train: int = setting(2000, least=1)
    """Sentences to train on."""
    num_validation: int = setting(500, least=1)
    """Sentences to validate on."""
    batch_size: int = setting(32, least=1)
    """Sentences in a batch."""
    seed: int = 0
    """Seed of the sentences only; args.seed seeds the training."""

    def load(self) -> tuple[Any, Any]:
        """Return loaders of training and validation batches.

        A batch has ``tokens``, ``int64 [B, L]``, padded with 0, and ``label``, ``int64 [B]``.
        """
        # Lists are datasets, which torch's annotations do not say.
        train: Any = make_sentences(self.num_train, self.seed)
        validation: Any = make_sentences(self.num_validation, self.seed + _VALIDATION_SEED_OFFSET)
        return (
            DataLoader(train, self.batch_size, shuffle=True, collate_fn=_collate),
            DataLoader(validation, self.batch_size, collate_fn=_collate),
        )


class BagOfWordsClassifier(nn.Module):
    """Averages the vectors of a sentence's words and classifies the average.

    Args:
        vocab_size: Words; number 0 is padding.
        num_labels: Classes.
        embedding_dim: Size of a word's vector.
        dropout: Part of the average that is dropped in training, 0 to 1.

    Raises:
        ValueError: If a size is below 1, or ``dropout`` out of range.
    """

    def __init__(self, vocab_size: int, num_labels: int, embedding_dim: int = 16, dropout: float = 0.2) -> None:
        super().__init__()
        if embedding_dim < 1:
            raise ValueError(f"`embedding_dim={embedding_dim}` is not positive; set it to 1 or more")
        self.embedding = nn.EmbeddingBag(vocab_size, embedding_dim, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(embedding_dim, num_labels)
        self._num_correct = self._num_seen = 0

    def forward(self, tokens: torch.Tensor, label: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return ``logits``, ``float32 [B, num_labels]``, and with labels the ``loss``.

        ``tokens`` are word numbers, ``int64 [B, L]``, padded with 0; ``label`` are classes, ``int64 [B]``.
        """
        logits = self.classifier(self.dropout(self.embedding(tokens)))
        if label is None:
            return {"logits": logits}
        self._num_correct += int((logits.argmax(dim=-1) == label).sum())
        self._num_seen += len(label)
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, label)}

    def get_metrics(self, reset: bool = False) -> dict[str, float]:
        metrics = {"accuracy": self._num_correct / self._num_seen if self._num_seen else 0.0}
        if reset:
            self._num_correct = self._num_seen = 0
        return metrics


def make_sentences(count: int, seed: int) -> list[Sentence]:
    """Return ``count`` sentences: two words of the topic, up to two words of any, and fillers between."""
    draw = random.Random(seed)
    return [_make_sentence(draw) for _ in range(count)]


def _make_sentence(draw: random.Random) -> Sentence:
    topic = draw.randrange(len(TOPICS))
    words = draw.sample(_WORDS[TOPICS[topic]].split(), 2) + draw.choices(_FILLERS.split(), k=draw.randint(4, 9))
    words += [draw.choice(_WORDS[draw.choice(TOPICS)].split()) for _ in range(draw.randint(0, 2))]
    draw.shuffle(words)
    return Sentence(tuple(words), topic)


_NUMBERS = {word: number for number, word in enumerate(VOCABULARY, start=1)}


def _collate(sentences: list[Sentence]) -> dict[str, torch.Tensor]:
    rows = [torch.tensor([_NUMBERS[word] for word in sentence.words]) for sentence in sentences]
    return {
        "tokens": pad_sequence(rows, batch_first=True),
        "label": torch.tensor([sentence.topic for sentence in sentences]),
    }
