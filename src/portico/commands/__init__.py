"""The commands: one module each, which starts without torch, and the modules that do their work."""
