"""Training data in files and streams, and the records that cannot be used."""
