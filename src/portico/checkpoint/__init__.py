"""Checkpoints in Hugging Face's layout: either library resumes what the other wrote."""
