"""IPUs: Lightning's and Hugging Face's side of a run on Graphcore hardware, over ``poptorch`` or its emulator."""

# Importing Lightning registers our accelerator and strategy, which must not happen while one of their modules is
# itself being imported. So it comes first.
import lightning.pytorch as _lightning  # noqa: F401
