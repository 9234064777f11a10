"""TensorBoard's files of a run."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch


class SummaryFiles:
    """One folder for each split; none is made before something is written.

    Args:
        folder: Where the folders of the splits lie; without one nothing is written.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def add_scalar(self, split: str, name: str, value: Any, step: int) -> None:
        """Write a number; anything else is left out."""
        number = value.item() if hasattr(value, "item") else value
        if self._folder is not None and isinstance(number, int | float):
            self._writer(self._folder / split).add_scalar(name, number, step)

    def add_histogram(self, split: str, name: str, values: Any, step: int) -> None:
        """Write the distribution of a tensor's values; anything else is left out."""
        if self._folder is not None and isinstance(values, torch.Tensor):
            flat = values.detach().float().cpu().numpy().flatten()
            self._writer(self._folder / split).add_histogram(name, flat, step)

    def close(self) -> None:
        """Flush and close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _writer(self, folder: Path) -> Any:
        if folder.name not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            self._writers[folder.name] = SummaryWriter(str(folder))
        return self._writers[folder.name]


def tensorboard_is_installed() -> bool:
    """Return whether TensorBoard's package is there."""
    return find_spec("tensorboard") is not None
