"""Data loaders: how they are built, placed and divided among processes."""
