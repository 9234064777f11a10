"""Layers of any model of ``transformers``, spread over the IPUs of a replica."""
