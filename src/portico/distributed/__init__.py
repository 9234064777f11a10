"""The processes of a run: placement, strategies, precision, and ``trainer.accelerator``."""
