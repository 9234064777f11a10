"""What the emulator learns about a model by running it once at compilation."""
