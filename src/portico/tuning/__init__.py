"""Hyperparameter search: one file for each backend, all behind ``Trainer.hyperparameter_search``."""
