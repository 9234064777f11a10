"""Loaders of combined batches."""
