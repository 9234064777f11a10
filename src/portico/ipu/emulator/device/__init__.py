"""The emulated devices: their memory, random streams, weight updates, and how many there are."""
