"""Former place of :mod:`models`, for the rooms that still import it from here."""

from models import tiny_t5, tiny_tokenizer

__all__ = ["tiny_t5", "tiny_tokenizer"]
