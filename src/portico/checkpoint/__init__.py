"""Checkpoints in Hugging Face's layout: either side resumes what the other wrote."""
