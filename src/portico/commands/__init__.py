"""Run a script written for transformers under portico, prove that the numbers are the same, open one of its steps."""
