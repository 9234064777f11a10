"""Batches of features, with what a head reads beside them."""
