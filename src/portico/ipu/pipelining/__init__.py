"""Placement of the layers of any ``transformers`` model on the IPUs of a replica."""
