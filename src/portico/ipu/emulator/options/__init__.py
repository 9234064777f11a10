"""How a model is compiled and run: ``poptorch.Options`` and its groups."""
