"""The best weights of a training, kept until its end."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from portico.gradient_descent.files import replace_file


class BestWeights:
    """Keeps weights in ``best.th``, or in memory.

    Args:
        folder: Folder of the file; ``None`` keeps them in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / "best.th"
        self._in_memory: dict[str, Any] | None = None

    @property
    def exist(self) -> bool:
        """Whether weights have been kept."""
        return self._in_memory is not None if self.path is None else self.path.is_file()

    def save(self, model: nn.Module, *, is_primary: bool) -> None:
        """Keep the weights of ``model``; a file is written by the first process alone."""
        if self.path is None:
            self._in_memory = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        elif is_primary:
            with replace_file(self.path) as staging:
                torch.save(model.state_dict(), staging)

    def load(self, model: nn.Module) -> None:
        """Put the weights into ``model``."""
        weights = self._in_memory
        if self.path is not None:
            weights = torch.load(self.path, map_location="cpu", weights_only=True)
        assert weights is not None, "weights have been kept"
        model.load_state_dict(weights)
