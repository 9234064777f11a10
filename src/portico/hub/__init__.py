"""The hub: a card that describes the model, and uploads while training and after."""
