"""IPUs: the `poptorch` seam, an emulator of it, and Lightning's and Hugging Face's side of a run on IPUs."""

# Importing Lightning registers our accelerator and strategy with it. This comes first: begun by one of the modules
# that they are made of, it would meet that module half imported.
import lightning.pytorch as _lightning  # noqa: F401
