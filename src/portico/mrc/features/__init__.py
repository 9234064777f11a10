"""From examples to features: tokenised windows with labels, as a model reads them.

Tokenizing each distinct text once is several times faster than encoding each pair, because the questions of an article
share their context. Not every tokenizer encodes a pair as the sum of its texts, so ``WindowCutter`` compares both ways
on a sample of the pairs every time, and encodes pairs if they differ.
"""
