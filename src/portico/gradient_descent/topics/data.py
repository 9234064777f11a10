"""Sentences as batches of numbers."""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.topics.sentences import Sentence, make_sentences, vocabulary

# Validation sentences are drawn from another seed than those of training.
_VALIDATION_SEED_OFFSET = 1


def make_loaders(num_train: int, num_validation: int, batch_size: int, seed: int = 0) -> tuple[Any, Any]:
    """Return loaders of training and validation batches (``tokens``, ``int64 [B, L]``; ``label``, ``int64 [B]``).

    Args:
        num_train: Sentences to train on.
        num_validation: Sentences to validate on.
        batch_size: Sentences in a batch.
        seed: Of the sentences.

    Raises:
        ConfigurationError: If a count is not positive.
    """
    counts = {"num_train": num_train, "num_validation": num_validation, "batch_size": batch_size}
    for name, count in counts.items():
        if count < 1:
            raise ConfigurationError(f"`data.{name}={count}` cannot be used; set it to an int >= 1.")
    numbers = {word: index for index, word in enumerate(vocabulary(), start=1)}

    def collate(sentences: list[Sentence]) -> dict[str, torch.Tensor]:
        rows = [torch.tensor([numbers[word] for word in sentence.words]) for sentence in sentences]
        return {
            "tokens": pad_sequence(rows, batch_first=True),
            "label": torch.tensor([sentence.topic for sentence in sentences]),
        }

    train = make_sentences(num_train, seed)
    validation = make_sentences(num_validation, seed + _VALIDATION_SEED_OFFSET)
    return (
        DataLoader(train, batch_size, shuffle=True, collate_fn=collate),  # type: ignore[arg-type]
        DataLoader(validation, batch_size, collate_fn=collate),  # type: ignore[arg-type]
    )


def num_words() -> int:
    """Return the size of the vocabulary, padding included."""
    return len(vocabulary()) + 1
