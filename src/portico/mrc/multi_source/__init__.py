"""Training on several data sets at once, each batch of one of them."""
