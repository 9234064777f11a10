"""Evaluation in Lightning's loop, with Hugging Face's arrays and metrics."""
