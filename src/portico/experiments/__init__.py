"""What an experiment consists of: its settings, how it is built and run, and small models made from scratch."""
