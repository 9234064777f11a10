"""IPUs: the `poptorch` seam, an emulator of it, and Lightning's and Hugging Face's side of a run on IPUs."""
