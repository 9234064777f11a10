"""A compiled program: what a call takes, runs and returns."""
