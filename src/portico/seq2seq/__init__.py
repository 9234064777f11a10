"""Sequence to sequence: a ``Trainer`` that evaluates by generated tokens."""
