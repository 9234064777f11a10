"""A generated extractive question answering corpus in the form of SQuAD 2.0."""

from portico.mrc.corpus.generator import Example, GoldAnswers, generate, to_squad

__all__ = ["Example", "GoldAnswers", "generate", "to_squad"]
