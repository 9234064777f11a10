"""A generated extractive question answering corpus in the form of SQuAD 2.0."""

from portico.mrc.corpus.generator import generate

__all__ = ["generate"]
