"""What a trainer is given to turn the outputs of an evaluation into answers."""
