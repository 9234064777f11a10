"""Answers that are generated, from one passage or from several."""
