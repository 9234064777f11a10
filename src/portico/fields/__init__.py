"""What becomes of every field of the training arguments."""
