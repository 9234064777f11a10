"""A small text classification that needs no download: which topic is a sentence about?"""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from portico.experiments import toy_records
from portico.experiments.settings import setting

TOPICS = tuple(toy_records.TOPICS)
VOCABULARY = (*(word for words in toy_records.TOPICS.values() for word in words), *toy_records.FILLERS)
VOCAB_SIZE = len(VOCABULARY) + 1  # 0 is padding
# Training and validation sentences are drawn from different seeds.
_VALIDATION_SEED_OFFSET = 1


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


def make_sentences(count: int, seed: int) -> list[toy_records.Record]:
    """Return ``count`` sentences, each with its ``words`` and its ``topic``."""
    draw = random.Random(seed)
    return [toy_records.topic_remark(draw) for _ in range(count)]


_NUMBERS = {word: number for number, word in enumerate(VOCABULARY, start=1)}


def _collate(sentences: list[toy_records.Record]) -> dict[str, torch.Tensor]:
    rows = [torch.tensor([_NUMBERS[word] for word in sentence["words"]]) for sentence in sentences]
    return {
        "tokens": pad_sequence(rows, batch_first=True),
        "label": torch.tensor([TOPICS.index(sentence["topic"]) for sentence in sentences]),
    }
