"""Batches: read, ordered, shared between processes, and fed to the loops of Lightning."""
