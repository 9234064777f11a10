"""A classifier of short texts by their words."""

import torch
from torch import nn


class BagOfWordsClassifier(nn.Module):
    """Averages the vectors of a text's words and classifies the average.

    Args:
        vocab_size: Words; number 0 is padding.
        num_labels: Classes.
        embedding_dim: Size of a word's vector.
        dropout: Part of the average that is dropped in training.
    """

    def __init__(self, vocab_size: int, num_labels: int, embedding_dim: int = 16, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embedding_dim, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(embedding_dim, num_labels)
        self._num_correct = self._num_seen = 0

    def forward(self, tokens: torch.Tensor, label: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return ``logits``, ``float32 [B, num_labels]``, and with labels the ``loss``.

        Args:
            tokens: Numbers of the words, ``int64 [B, L]``, padded with 0.
            label: Classes, ``int64 [B]``.
        """
        logits = self.classifier(self.dropout(self.embedding(tokens)))
        if label is None:
            return {"logits": logits}
        self._num_correct += int((logits.argmax(dim=-1) == label).sum())
        self._num_seen += len(label)
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, label)}

    def get_metrics(self, reset: bool = False) -> dict[str, float]:
        """Return the accuracy since the last reset."""
        metrics = {"accuracy": self._num_correct / self._num_seen if self._num_seen else 0.0}
        if reset:
            self._num_correct = self._num_seen = 0
        return metrics
