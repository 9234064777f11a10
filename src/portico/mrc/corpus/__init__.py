"""A generated extractive question answering corpus in the form of SQuAD 2.0."""

from portico.mrc.corpus.generator import Answers, Example, generate, to_squad

__all__ = ["Answers", "Example", "generate", "to_squad"]
