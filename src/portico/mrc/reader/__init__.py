"""Questions to answers with a trained model: ``Reader(path).answer(question, context)``."""

from portico.mrc.reader.answer import Answer
from portico.mrc.reader.reader import Reader

__all__ = ["Answer", "Reader"]
