"""Examples to features: the tokenised windows that a model reads."""
